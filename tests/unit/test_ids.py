"""Any text becomes an id. The typed client, the command and the JavaScript clients make the same id from one text."""

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
REFUSED = "!"  # in place of an id in the table: the clients send the name unchanged, and the API refuses it
NODE_SCRIPT = """
const { Tally, idOf } = await import(process.argv[1]);
const { TallyFunctions } = await import(process.argv[2]);
let text = "", sent;
for await (const part of process.stdin) text += part;
const Payload = Buffer.from('{"status":200,"body":{}}');
const send = async ({ input }) => ((sent = JSON.parse(input.Payload)), { Payload });
const tally = new TallyFunctions({ prefix: "t-", lambda: { send } });
const ids = [];
for (const name of JSON.parse(text)) {
  await tally.get_counter({ counter: "plays", id: name });
  ids.push([idOf(name), Tally.prototype.of("plays", name).slice(6), sent.id]);
}
process.stdout.write(JSON.stringify(ids));
"""
# Signs that an id encodes, the letters of percent-encodings, and characters that NFC joins.
ALPHABET = "aZ09._:~@-/%?&=+ !'()*|\"\\<>[]{}^`$,;éя語😀\u0301\u00a0\ufeff2FD0BF\u1112\u1161"
PARTS = [*ALPHABET, "%20", "%2F", "%D0%BF", "%e9", "%7B", "%23", "~2F"]


def ids_in_python(name: str) -> list[str]:
    """Returns the ids that methods of the typed client make from a name. `[6:]` removes `plays:` or `plays/`."""
    calls = [
        requests.increment("plays", name).fields["id"],
        requests.get_tallies([f"plays:{name}"]).fields["of"][0][6:],
        requests.get_series(f"plays:{name}").fields["of"][6:],
        requests.change([{"counter": "plays", "id": name, "amount": 1}]).fields["changes"][0]["id"],
        requests.get_receipts("increment", [f"plays/{name}"], ["k"]).fields["target"][0][6:],
    ]
    return [ids.id_of(name), *calls]


def ids_in_javascript(names: list[str]) -> list[list[str]]:
    """Returns, for each name, the ids that the clients for browsers and for functions make."""
    clients = [str(CLIENT_FOLDER / name) for name in ("tally.js", "lambda.js")]
    command = ["node", "--input-type=module", "-e", NODE_SCRIPT, "--", *clients]
    process = subprocess.run(
        command, input=json.dumps(names), capture_output=True, text=True, check=True, timeout=PATIENCE_S
    )
    return json.loads(process.stdout)  # type: ignore[no-any-return]


@pytest.mark.parametrize(("name", "id_"), TABLE)
def test_each_name_of_the_table_becomes_the_id_beside_it(name: str, id_: str) -> None:
    expected = name if id_ == REFUSED else id_
    assert set(ids_in_python(name)) == {expected}
    if id_ == REFUSED:
        with pytest.raises(InvalidInputError):
            fields.identifier(expected, "id")
    else:
        assert fields.identifier(expected, "id") == id_


def test_all_clients_make_the_same_id_and_an_id_stays_as_it_is() -> None:
    rng = random.Random(1)
    names = [name for name, _ in TABLE] + ["".join(rng.choices(PARTS, k=rng.randrange(1, 12))) for _ in range(20_000)]
    expected = [ids.id_of(name) for name in names]
    assert [set(ids_of_name) for ids_of_name in ids_in_javascript(names)] == [{id_} for id_ in expected]
    assert [ids.id_of(id_) for id_ in expected] == expected
    # The clients send a name with `#`, and a dot or two, unchanged, and the API refuses these.
    assert all(ids.ID_PATTERN.fullmatch(id_) for id_ in expected if id_ not in (".", "..") and "#" not in id_)


def test_two_texts_have_one_id_only_if_they_are_one_text_to_browsers_and_unicode() -> None:
    rng = random.Random(2)
    text_by_id: dict[str, str] = {}
    for name in ("".join(rng.choices(PARTS, k=rng.randrange(1, 6))) for _ in range(20_000)):
        if not ids.ID_PATTERN.fullmatch(name):  # an id stays as it is
            # Browsers decode percent-encodings, and Unicode has several spellings of one text.
            text = unicodedata.normalize("NFC", ids._ENCODED.sub(ids._decode_letters, name))
            assert text_by_id.setdefault(ids.id_of(name), text) == text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("/posts/x/", "write ~2Fposts~2Fx~2F"),
        ("acme#2026-11", "write # as ~23"),
        ("я" * 43, "has 258 characters"),  # six for each letter: ~D1~8F
        ("..", "not a dot or two"),
    ],
)
def test_the_api_refuses_a_text_that_is_not_an_id_with_the_right_spelling_or_the_reason(text: str, words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        fields.identifier(text, "id")


def test_the_typed_client_sends_the_address_of_a_page_unchanged() -> None:
    page = "https://example.com/a b"
    assert requests.get_tallies([f"visits:{page}"]).fields["of"] == [f"visits:{page}"]
    assert requests.get_details("page_visitors", page).fields["id"] == page
    assert requests.get_receipts("visit", [page], ["k"]).fields["target"] == [page]
