"""The faults themselves: each does what its name says, or the other tests would show nothing."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from botocore.exceptions import BotoCoreError, ClientError

from dev import faults
from dev.base.engine import Engine
from dev.faults import Fault, FaultProxy, Kind
from tally.dynamo.client import dynamodb_client
from tests.invariants.world import World

LATE_S = 0.05
FAULTS: dict[Kind, Fault] = {
    **{kind: Fault(kind) for kind in Kind},
    Kind.DELAY: faults.delay(LATE_S),
    Kind.LATE_ANSWER: faults.late_answer(LATE_S),
    Kind.MIXED: faults.mixed(0, 1, {"SK": {"S": "x"}}),
}
ARRIVES = {
    Kind.LOSE_RESPONSE, Kind.SILENCE, Kind.FAIL_AFTER, Kind.ANSWER_AFTER, Kind.TRUNCATE, Kind.DELAY, Kind.LATE_ANSWER,
}  # fmt: skip
SAYS = {
    Kind.FAIL_AFTER: "InternalServerError",
    Kind.FAIL_BEFORE: "InternalServerError",
    Kind.THROTTLE: "ProvisionedThroughputExceededException",
    Kind.CONFLICT: "TransactionCanceledException",
    Kind.THROTTLED_TRANSACTION: "TransactionCanceledException",
    Kind.MIXED: "TransactionCanceledException",
    Kind.ANSWER: "TransactionConflict",
    Kind.ANSWER_AFTER: "TransactionConflict",
}


def add(world: World, sort_keys: tuple[str, ...] = ("a", "b")) -> None:
    """One transaction that adds 1 to each item."""
    table = world.store.settings.counts_table
    writes = [
        {
            "TableName": table,
            "Key": {"PK": {"S": "X"}, "SK": {"S": sort_key}},
            "UpdateExpression": "ADD #number :one",
            "ExpressionAttributeNames": {"#number": "number"},
            "ExpressionAttributeValues": {":one": {"N": "1"}},
        }
        for sort_key in sort_keys
    ]
    world.store.client.transact_write_items(TransactItems=[{"Update": write} for write in writes])  # type: ignore[misc]


def failure(world: World) -> Any:
    """What the SDK makes of a transaction that always meets the fault; None if nothing."""
    try:
        add(world)
    except (ClientError, BotoCoreError) as error:
        return error
    return None


@pytest.mark.parametrize("kind", Kind, ids=lambda kind: kind.name.lower())
def test_each_fault_reaches_the_engine_or_not_and_the_client_as_it_says(make_world: Any, kind: Kind) -> None:
    world: World = make_world(hasty=kind in (Kind.SILENCE, Kind.HANG_BEFORE))
    world.proxy.plan = faults.always(FAULTS[kind])
    error = failure(world)
    assert len(world.items()) == (2 if kind in ARRIVES else 0)
    assert all(request.forwarded is (kind in ARRIVES) for request in world.proxy.requests)
    assert world.proxy.injected(FAULTS[kind], "TransactWriteItems") == len(world.proxy.requests) >= 1
    if kind in SAYS:
        assert error.response["Error"]["Code"] == SAYS[kind]
    elif kind in (Kind.DELAY, Kind.LATE_ANSWER):
        assert error is None
    elif kind is not Kind.TRUNCATE:  # which the SDK may take for an answer in the end
        assert isinstance(error, BotoCoreError)


def test_reasons_stand_at_the_places_of_the_writes(world: World) -> None:
    world.proxy.plan = faults.always(faults.mixed(0, 2, {"SK": {"S": "x"}}, code="ThrottlingError"))
    with pytest.raises(world.store.client.exceptions.TransactionCanceledException) as cancelled:
        add(world, ("a", "b", "c"))
    first, second, third = cancelled.value.response["CancellationReasons"]
    assert (first["Code"], first["Item"]) == ("ConditionalCheckFailed", {"SK": {"S": "x"}})
    assert second["Code"] == "None"
    assert third["Code"] == "ThrottlingError"


def test_without_faults_nothing_changes_on_the_way(world: World) -> None:
    add(world)
    ((request,), (sent,)) = world.proxy.requests, world.sent()
    assert (request.operation, request.fault, request.forwarded) == ("TransactWriteItems", None, True)
    assert sent["ClientRequestToken"]
    assert world.proxy.counts == {("NONE", "TransactWriteItems"): 1}


def test_stripped_tokens_do_not_reach_the_engine(world: World) -> None:
    world.proxy.strip_tokens = True
    world.proxy.plan = faults.script({"TransactWriteItems": [faults.LOSE_RESPONSE]})
    add(world)
    assert all("ClientRequestToken" not in sent for sent in world.sent())
    assert {item["number"]["N"] for item in world.items()} == {"2"}


def test_tokens_protect_the_sdks_own_retry_on_the_engine(world: World) -> None:
    world.proxy.plan = faults.script({"TransactWriteItems": [faults.LOSE_RESPONSE]})
    add(world)
    assert {item["number"]["N"] for item in world.items()} == {"1"}


def test_seeded_plan_depends_on_the_seed_alone() -> None:
    chances = {"Query": {faults.LOSE_RESPONSE: 0.3, faults.THROTTLE: 0.2}}

    def drawn(seed: int) -> list[Fault | None]:
        return [faults.seeded(seed, chances)("Query", b"", number) for number in range(1000)]

    assert drawn(1) == drawn(1) != drawn(2)
    assert 240 < drawn(1).count(faults.LOSE_RESPONSE) < 360
    assert 150 < drawn(1).count(faults.THROTTLE) < 250
    assert faults.seeded(1, chances)("GetItem", b"", 0) is None


def test_each_plan_counts_the_requests_of_an_operation_from_0(world: World) -> None:
    numbers: list[int] = []
    for _ in range(2):
        world.proxy.plan = lambda operation, body, number: numbers.append(number)
        add(world)
        world.read_plays()
        add(world)
    assert numbers == [0, 0, 1] * 2


def test_bug_in_a_plan_is_raised_at_the_end(engine: Engine) -> None:
    def broken(operation: str, body: bytes, number: int) -> None:
        raise ZeroDivisionError("in the plan")

    def run() -> None:
        with FaultProxy(engine.endpoint, broken) as proxy:
            client = dynamodb_client(endpoint_url=proxy.endpoint)
            with contextlib.closing(client), contextlib.suppress(BotoCoreError):
                client.list_tables()

    with pytest.raises(ZeroDivisionError, match="in the plan"):
        run()
