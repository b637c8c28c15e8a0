"""Tests the JavaScript client of Lambda functions, with the SDK of AWS, against the Invoke API of `make dev`."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from bench.running import bare_environment
from tests.e2e.dev import Dev
from tests.patience import PATIENCE_S

LAMBDA = Path(__file__).resolve().parents[2] / "tally/javascript/lambda.js"
# Prints the answers of seven calls, or the fields of the errors that they throw.
PROGRAM = """
import { TallyFunctions } from %s;
const tally = new TallyFunctions({ prefix: "", caller: "shop" });
const fieldsOf = ({ name, message, problem, retryable }) => [name, problem?.type, retryable, message];
const errorOf = (promise) => promise.then(() => null, fieldsOf);
const key = { idempotency_key: "order-1" };
console.log(JSON.stringify([
  await tally.increment({ counter: "usage", id: "js", amount: 7, ...key }),
  await tally.increment({ counter: "usage", id: "js", amount: 7, ...key }),
  await tally.increment({ counter: "usage", id: "js", amount: 1 }),
  await tally.get_counter({ counter: "usage", id: "js" }),
  await tally.put_mine({ counter: "hearts", id: "js", caller: "ann" }),
  await errorOf(tally.increment({ counter: "stock", id: "js", amount: -1 })),
  await errorOf(new TallyFunctions({ functions: {} }).health({})),  // the function has no name
]));
"""

# Loses the first two answers.
LOSING_PROGRAM = """
import { LambdaClient } from "@aws-sdk/client-lambda";
import { TallyFunctions } from %s;
const real = new LambdaClient();
let lost = 2;
const lambda = { send: async (command) => {
  const answer = await real.send(command);
  if (lost-- > 0) throw new Error("connection reset");
  return answer;
} };
const tally = new TallyFunctions({ prefix: "", lambda });
console.log(JSON.stringify(await tally.increment({ counter: "plays", id: "lost-js" })));
"""


def run(dev: Dev, program: str) -> Any:
    """Runs a program in Node against `make dev`. Returns the JSON that the program prints."""
    environment = bare_environment(
        AWS_ENDPOINT_URL_LAMBDA=dev.url, AWS_REGION="eu-west-1", AWS_ACCESS_KEY_ID="x", AWS_SECRET_ACCESS_KEY="x"
    )
    ended = subprocess.run(
        ["node", "--input-type=module"], input=program % json.dumps(LAMBDA.as_uri()), env=environment,
        cwd=LAMBDA.parent, capture_output=True, text=True, check=False, timeout=PATIENCE_S,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def test_operations_are_methods_and_a_repeated_key_counts_once(dev: Dev) -> None:
    first, replay, other, read, liked, refused, unnamed = run(dev, PROGRAM)
    assert [counted["replayed"] for counted in (first, replay, other)] == [False, True, False]
    assert read["value"] == 7 + 1
    assert (liked["child"], liked["present"]) == ("ann", True)
    assert refused[:3] == ["TallyError", "urn:problem-type:tally:limit-reached", False]
    assert unnamed[0] == "TypeError"
    assert "name or ARN of health" in unnamed[3]


def test_a_change_whose_answer_is_lost_is_sent_with_the_same_key_until_an_answer_comes(dev: Dev) -> None:
    """The program wraps the client of the SDK, and drops the first two answers."""
    assert run(dev, LOSING_PROGRAM)["replayed"] is True
    assert dev.plays("lost-js") == 1
