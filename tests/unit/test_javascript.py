"""The JavaScript client (tally/javascript): its own tests in Node, its types, and the size of its files."""

from __future__ import annotations

import gzip
import os
import re
import subprocess
from pathlib import Path

import pytest

from tally.api import scripts
from tests.patience import PATIENCE_S

# A mutation runs on a copy of the code. The tests beside that copy import the mutated client.
TESTS = scripts.CLIENT_FOLDER.parents[1] / "tests/javascript"
CORE_BYTES_MAX, ALL_BYTES_MAX = 9400, 13300  # compressed, as the API sends them


def run_tests(*tests: Path, **variables: str) -> None:
    command, environment = ["node", "--test", *map(str, tests)], {**os.environ, **variables}
    process = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)
    assert process.returncode == 0, process.stdout


def test_the_javascript_tests_of_the_client_pass_in_node() -> None:
    tests = sorted(TESTS.glob("*.test.js"))
    assert tests
    run_tests(*tests)


@pytest.mark.long
@pytest.mark.parametrize("first_seed", range(13, 1013, 50))  # without SEED, the test runs seeds 1 to 12
def test_the_client_agrees_with_its_model_for_a_thousand_more_seeds(first_seed: int) -> None:
    run_tests(TESTS / "model.test.js", SEED=str(first_seed), SEEDS="50")


TSC = Path(__file__).resolve().parents[2] / "node_modules/.bin/tsc"
USER_PROGRAM = """
import { Tally, type Outcome } from "%(client)s/tally.js";
import { define } from "%(client)s/elements.js";
import { tally as tagged, refresh as refreshTagged } from "%(client)s/auto.js";
import { folder } from "%(client)s/node.js";
import { TallyFunctions, TallyError } from "%(client)s/lambda.js";

const token = async (fresh: boolean) => (fresh ? "b" : "a");
const tally = new Tally({ api: "https://api.example.com", user: () => "ann", token });
new Tally({ api: "https://api.example.com", storage: folder("/var/lib/outbox") }).retry();
const refresh: () => void = define(tally);
refreshTagged();
export const taggedApi: string = tagged.api;
tally.like("hearts", "article-2", true, { anonymous: true });
export const forgotten: Promise<Outcome[]> = tally.forget();
const describe = (outcome: Outcome): string => {
  switch (outcome.state) {
    case "counted": return String(outcome.replayed);
    case "refused": return outcome.answer.detail;
    case "denied": return `${outcome.status}`;
    default: return outcome.state;
  }
};
export const played: Promise<string> = tally.increment("usage", "7c20", { amount: 7, signed: true }).then(describe);
tally.like("hearts", "article-1", false);
tally.increment("plays", 7n, { key: 1234567890123456789012n, amount: 1n });
export const stuck = (): string[] => tally.waiting().filter(({ why }) => why === "denied").map(({ id }) => id);
tally.addEventListener("change", ({ detail }) => console.log(detail.entry.key, detail.outcome?.state));
export const shown = async (): Promise<(number | bigint)[]> =>
  (await tally.values(["plays:9f3a"], { fresh: true })).map((one) => ("value" in one ? one.value : NaN));
export const left = async (): Promise<(number | bigint | undefined)[]> =>
  (await tally.values(["plays:9f3a"])).map((one) => ("value" in one && one.resets_at && one.limit ? one.left : 0));
export const liked = async () =>
  (await tally.mine(["hearts:article-1"])).some((one) => "present" in one && one.present);
refresh();
export const sold = async (): Promise<boolean> => {
  try {
    const functions = new TallyFunctions({ prefix: "tally-" });
    return (await functions.increment({ counter: "stock", id: "mug", amount: -1 })).replayed;
  } catch (error) {
    if (error instanceof TallyError) return error.retryable;
    throw error;
  }
};
"""


def test_typescript_takes_a_program_with_every_documented_type_and_refuses_a_boolean_as_an_id(tmp_path: Path) -> None:
    text = USER_PROGRAM % {"client": scripts.CLIENT_FOLDER}
    wrong = text.replace('tally.like("hearts", "article-1"', 'tally.like("hearts", true')
    for name, program in (("right", text), ("wrong", wrong)):
        (tmp_path / f"{name}.ts").write_text(program)
    options = ["--strict", "--noEmit", "--ignoreConfig", "--target", "es2022", "--module", "nodenext"]
    command = [TSC, *options, "--lib", "es2023,dom", *map(str, tmp_path.iterdir())]
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    [line] = process.stdout.splitlines()
    assert line.startswith("wrong.ts(")
    assert "'boolean' is not assignable to parameter of type 'Id'" in line


def test_no_served_script_has_an_address_that_a_bundler_takes_for_a_file() -> None:
    """If a script has `new URL("..", import.meta.url)`, a bundler takes `..` for a file to copy, and warns."""
    for name in scripts.SERVED_FILES:
        assert not re.search(r"new URL\([^)]*import\.meta", scripts.read_script(name).text)


def test_the_client_is_small() -> None:
    names = ("auto.js", "tally.js", "elements.js")
    sizes = {name: len(gzip.compress(scripts.read_script(name).text.encode(), 9, mtime=0)) for name in names}
    assert sizes["tally.js"] <= CORE_BYTES_MAX, sizes
    assert sum(sizes.values()) <= ALL_BYTES_MAX, sizes
