"""Ids of any text: the typed client, the command and the JavaScript clients spell them alike."""

from __future__ import annotations

import json
import random
import subprocess
import unicodedata
from pathlib import Path

import pytest

from tally import fields, ids
from tally.api.scripts import CLIENT_FOLDER
from tally.client import requests
from tally.errors import InvalidInputError
from tests.patience import PATIENCE_S

TABLE = [
    line.split("\t")
    for line in Path(__file__).with_name("id_spellings.txt").read_text(encoding="utf-8").splitlines()
    if not line.startswith("#")
]
REFUSED = "!"
IN_NODE = """
const { Tally, idOf } = await import(process.argv[1]);
const { TallyFunctions } = await import(process.argv[2]);
let text = "", sent;
for await (const part of process.stdin) text += part;
const Payload = Buffer.from('{"status":200,"body":{}}');
const send = async ({ input }) => ((sent = JSON.parse(input.Payload)), { Payload });
const tally = new TallyFunctions({ prefix: "t-", lambda: { send } });
const ways = [];
for (const name of JSON.parse(text)) {
  await tally.get_counter({ counter: "plays", id: name });
  ways.push([idOf(name), Tally.prototype.of("plays", name).slice(6), sent.id]);
}
process.stdout.write(JSON.stringify(ways));
"""
ALPHABET = "aZ09._:~@-/%?&=+ !'()*|\"\\<>[]{}^`$,;éя語😀\u0301\u00a0\ufeff2FD0BF\u1112\u1161"
PARTS = [*ALPHABET, "%20", "%2F", "%D0%BF", "%e9", "%7B", "%23", "~2F"]


def spelled(name: str) -> list[str]:
    """The id of a name on each way through the typed client."""
    calls = [
        requests.increment("plays", name).fields["id"],
        requests.get_tallies([f"plays:{name}"]).fields["of"][0][6:],
        requests.get_series(f"plays:{name}").fields["of"][6:],
        requests.change([{"counter": "plays", "id": name, "amount": 1}]).fields["changes"][0]["id"],
        requests.get_receipts("increment", [f"plays/{name}"], ["k"]).fields["target"][0][6:],
    ]
    return [ids.id_of(name), *calls]


def in_javascript(names: list[str]) -> list[list[str]]:
    """The same for the client of pages, and the client for functions."""
    command = [
        "node",
        "--input-type=module",
        "-e",
        IN_NODE,
        "--",
        str(CLIENT_FOLDER / "tally.js"),
        str(CLIENT_FOLDER / "lambda.js"),
    ]
    ended = subprocess.run(
        command, input=json.dumps(names), capture_output=True, text=True, check=True, timeout=PATIENCE_S
    )
    return json.loads(ended.stdout)  # type: ignore[no-any-return]


@pytest.mark.parametrize(("name", "id_"), TABLE)
def test_what_people_name_has_the_id_of_the_table(name: str, id_: str) -> None:
    wanted = name if id_ == REFUSED else id_
    assert set(spelled(name)) == {wanted}
    if id_ == REFUSED:
        with pytest.raises(InvalidInputError):
            fields.identifier(wanted, "id")
    else:
        assert fields.identifier(wanted, "id") == id_


def test_all_clients_spell_alike_and_an_id_is_itself() -> None:
    R = random.Random(1)
    names = [name for name, _ in TABLE] + ["".join(R.choices(PARTS, k=R.randrange(1, 12))) for _ in range(20_000)]
    wanted = [ids.id_of(name) for name in names]
    assert [set(ways) for ways in in_javascript(names)] == [{id_} for id_ in wanted]
    assert [ids.id_of(id_) for id_ in wanted] == wanted
    assert all(ids.ID_FORM.fullmatch(id_) for id_ in wanted if id_ not in (".", "..") and "#" not in id_)


def test_two_texts_have_one_id_only_if_browsers_and_unicode_write_them_alike() -> None:
    R = random.Random(2)
    meant: dict[str, str] = {}
    for name in ("".join(R.choices(PARTS, k=R.randrange(1, 6))) for _ in range(20_000)):
        if not ids.ID_FORM.fullmatch(name):  # an id is what it quotes
            text = unicodedata.normalize("NFC", ids._ENCODED.sub(ids._letters, name))
            assert meant.setdefault(ids.id_of(name), text) == text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("/posts/x/", "write ~2Fposts~2Fx~2F"),
        ("acme#2026-11", "write # as ~23"),
        ("я" * 43, "has 258 characters"),
        ("..", "not a dot or two"),
    ],
)
def test_the_api_takes_one_form_and_says_it(text: str, words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        fields.identifier(text, "id")


def test_the_address_of_a_page_is_left_to_tally() -> None:
    page = "https://example.com/a b"
    assert requests.get_tallies([f"visits:{page}"]).fields["of"] == [f"visits:{page}"]
    assert requests.get_details("page_visitors", page).fields["id"] == page
    assert requests.get_receipts("visit", [page], ["k"]).fields["target"] == [page]
