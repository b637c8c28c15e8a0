"""A change under its key, without a store: what each outcome becomes, and what names the receipt."""

from __future__ import annotations

import json
import re
import time
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
from packaging.requirements import Requirement

from tally.counting import receipts
from tally.counting.receipts import ReceiptDraft, ReceiptKey
from tally.dynamo.client import Call, Store, dynamodb_client
from tally.dynamo.clock import OFF_S_MAX
from tally.errors import AlreadyCountedError, NotCommittedError
from tally.settings import Settings
from tests.environments import ROOT

BODY = {"counted": True}
KEYED = ReceiptKey("play", "v1", "k", {"amount": 1})


@pytest.fixture
def call() -> Iterator[Call]:
    """A call whose store would fail, if it were asked."""
    client = dynamodb_client(endpoint_url="http://127.0.0.1:9")
    yield Call(
        Store(client, Settings("counts-of-test", "receipts-of-test", "ledger-of-test", frozenset(), 3600, "test"))
    )
    client.close()


def in_progress(left_s: int) -> dict[str, Any]:
    """As Powertools' own layer leaves a record while the function runs."""
    until = {"N": str(int((time.time() + left_s) * 1000))}
    return {"status": {"S": "INPROGRESS"}, "in_progress_expiration": until, "data": None, "nonce": None}


@pytest.mark.parametrize(
    "damage",
    [
        {"data": {"S": "{"}}, {"data": {"S": "[1]"}}, {"data": None}, {"status": {"S": "?"}},
        {"expiration": {"S": "x"}}, {"expiration": None}, {"id": None}, {"nonce": {"L": [{"S": "a"}]}, "data": None},
        in_progress(60), in_progress(-60), dict.fromkeys(("data", "status", "expiration", "validation", "nonce")),
    ],
    ids=lambda damage: "-".join(damage),
)  # fmt: skip
def test_broken_receipt_that_a_change_finds_is_not_committed(call: Call, damage: dict[str, Any]) -> None:
    def change(stamp: ReceiptDraft) -> Any:
        [write] = stamp.receipt(call, BODY).values()
        item = {**write["Item"], "nonce": {"S": "another"}, **damage}
        raise AlreadyCountedError({name: value for name, value in item.items() if value is not None})

    with pytest.raises(NotCommittedError):
        receipts.count_once(call, KEYED, change)


def test_without_a_key_nothing_is_made(call: Call) -> None:
    """Powertools hashes the parts of the name together: with one of them missing it would not notice."""
    with pytest.raises(NotCommittedError):
        receipts.count_once(call, KEYED._replace(key=""), lambda stamp: pytest.fail("the change was made"))


def test_stamp_names_operation_target_caller_and_key_and_nothing_else(call: Call) -> None:
    others = [KEYED._replace(operation="other"), KEYED._replace(target="v2"), KEYED._replace(key="l")]
    different = [receipts.draft_receipt(call, keyed).id for keyed in (KEYED, *others)]
    different.append(receipts.draft_receipt(Call(call.store, "ann"), KEYED).id)
    assert len(set(different)) == len(different)
    assert receipts.draft_receipt(call, KEYED._replace(payload={"amount": 2}, days=9)).id == different[0]
    assert all(name.startswith("tally#") and len(name) == 70 for name in different)


def test_stamp_carries_the_payloads_hash_and_the_expiry(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 1_795_000_000.5)
    named = Call(call.store, "alice")
    one, other = (
        receipts.draft_receipt(named, KEYED),
        receipts.draft_receipt(named, KEYED._replace(payload={"amount": 2})),
    )
    assert one.payload_hash != other.payload_hash
    assert one.expires_s == 1_795_000_000 + 3600 + OFF_S_MAX
    assert receipts.draft_receipt(named, KEYED._replace(days=9)).expires_s == 1_795_000_000 + 9 * 86400 + OFF_S_MAX
    assert json.loads(one.receipt(call, BODY)["Put"]["Item"]["data"]["S"]) == BODY


def test_a_team_installs_no_other_minor_version_of_powertools_than_the_functions_have() -> None:
    """Its private methods, which make the names of receipts, may change with each: a retry would count twice."""
    given = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["functions"]
    [taken] = [Requirement(one) for one in given if one.startswith("aws-lambda-powertools")]
    [pinned] = re.findall(
        r"^aws-lambda-powertools==(\d+)\.(\d+)\.(\d+)", (ROOT / "lambdas/requirements.in").read_text(), re.MULTILINE
    )
    major, minor, patch = map(int, pinned)
    assert taken.specifier.contains(f"{major}.{minor}.{patch}")
    assert taken.specifier.contains(f"{major}.{minor}.{patch + 1}")
    for other in (f"{major}.{minor + 1}.0", f"{major}.{minor - 1}.9", f"{major + 1}.0.0"):
        assert not taken.specifier.contains(other)
