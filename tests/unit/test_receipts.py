"""Broken receipts, the parts of a receipt's id, and what a receipt draft knows. No test needs a store."""

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
from tally.dynamo.clock import CLOCK_DIFFERENCE_S_MAX
from tally.errors import AlreadyCountedError, NotCommittedError
from tally.settings import Settings
from tests.environments import ROOT

BODY = {"counted": True}
RECEIPT_KEY = ReceiptKey("play", "v1", "k", {"amount": 1})


@pytest.fixture
def call() -> Iterator[Call]:
    """A call whose store fails each request."""
    client = dynamodb_client(endpoint_url="http://127.0.0.1:9")
    settings = Settings(
        "counts-of-test", "receipts-of-test", "ledger-of-test", frozenset(), receipt_ttl_s=3600, version="test"
    )
    yield Call(Store(client, settings))
    client.close()


def in_progress(remaining_s: int) -> dict[str, Any]:
    """Returns the attributes of a record that Powertools stores while a function runs. Receipts never have these."""
    expires = {"N": str(int((time.time() + remaining_s) * 1000))}
    return {"status": {"S": "INPROGRESS"}, "in_progress_expiration": expires, "data": None, "nonce": None}


@pytest.mark.parametrize(
    "damage",
    [
        {"data": {"S": "{"}}, {"data": {"S": "[1]"}}, {"data": None}, {"status": {"S": "?"}},
        {"expiration": {"S": "x"}}, {"expiration": None}, {"id": None}, {"nonce": {"L": [{"S": "a"}]}, "data": None},
        in_progress(60), in_progress(-60), dict.fromkeys(("data", "status", "expiration", "validation", "nonce")),
    ],
    ids=lambda damage: "-".join(damage),
)  # fmt: skip
def test_a_change_that_meets_a_broken_receipt_raises_an_error_and_is_not_committed(
    call: Call, damage: dict[str, Any]
) -> None:
    def change(draft: ReceiptDraft) -> Any:
        [write] = draft.receipt(call, BODY).values()
        item = {**write["Item"], "nonce": {"S": "of another call"}, **damage}  # None removes an attribute
        raise AlreadyCountedError({name: value for name, value in item.items() if value is not None})

    with pytest.raises(NotCommittedError):
        receipts.count_once(call, RECEIPT_KEY, change)


def test_a_change_with_an_empty_key_is_refused(call: Call) -> None:
    """Powertools hashes all parts of a receipt's id together, and would not notice an empty part."""
    with pytest.raises(NotCommittedError):
        receipts.count_once(call, RECEIPT_KEY._replace(key=""), lambda draft: pytest.fail("the change was made"))


def test_the_id_of_a_receipt_depends_on_operation_target_caller_and_key_alone(call: Call) -> None:
    changes: list[dict[str, Any]] = [{"operation": "other"}, {"target": "v2"}, {"key": "l"}]
    other_keys = [RECEIPT_KEY._replace(**change) for change in changes]
    ids = [receipts.draft_receipt(call, key).id for key in (RECEIPT_KEY, *other_keys)]
    ids.append(receipts.draft_receipt(Call(call.store, "ann"), RECEIPT_KEY).id)
    assert len(set(ids)) == len(ids)
    assert receipts.draft_receipt(call, RECEIPT_KEY._replace(payload={"amount": 2}, days=9)).id == ids[0]
    assert all(re.fullmatch("tally#[0-9a-f]{64}", id_) for id_ in ids)


def test_a_receipt_draft_has_the_hash_of_the_payload_and_the_expiry(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time", lambda: 1_795_000_000.5)
    call_of_alice = Call(call.store, "alice")
    draft = receipts.draft_receipt(call_of_alice, RECEIPT_KEY)
    other_draft = receipts.draft_receipt(call_of_alice, RECEIPT_KEY._replace(payload={"amount": 2}))
    assert draft.payload_hash != other_draft.payload_hash
    assert draft.expires_s == 1_795_000_000 + 3600 + CLOCK_DIFFERENCE_S_MAX
    kept_longer = receipts.draft_receipt(call_of_alice, RECEIPT_KEY._replace(days=9))
    assert kept_longer.expires_s == 1_795_000_000 + 9 * 86400 + CLOCK_DIFFERENCE_S_MAX
    assert json.loads(draft.receipt(call, BODY)["Put"]["Item"]["data"]["S"]) == BODY


def test_the_extra_for_functions_installs_the_minor_version_of_powertools_that_is_deployed() -> None:
    """Private methods of Powertools make the ids of receipts. If a version changed them, a retry would count twice."""
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["functions"]
    [required] = [Requirement(line) for line in extra if line.startswith("aws-lambda-powertools")]
    pins = (ROOT / "lambdas/requirements.in").read_text()
    [pinned] = re.findall(r"^aws-lambda-powertools==(\d+)\.(\d+)\.(\d+)", pins, re.MULTILINE)
    major, minor, patch = map(int, pinned)
    assert required.specifier.contains(f"{major}.{minor}.{patch}")
    assert required.specifier.contains(f"{major}.{minor}.{patch + 1}")
    for version in (f"{major}.{minor + 1}.0", f"{major}.{minor - 1}.9", f"{major + 1}.0.0"):
        assert not required.specifier.contains(version)
