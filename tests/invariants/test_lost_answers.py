"""The change is made and its answer is lost: the SDK tries again by itself, and callers send it again."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

import counters
import faults
from faults import Fault, FaultProxy
from local.base.engine import Engine
from tally.dynamo.client import Store, dynamodb_client
from tally.errors import StoreUnreachableError
from tally.settings import Settings
from tests.conftest import create_tables
from tests.invariants.world import FAST, POST, VIDEO, World, persist

DONE_BUT_LOST = [faults.LOSE_RESPONSE, faults.FAIL_AFTER, faults.TRUNCATE, faults.SILENCE]
NOT_DONE = [faults.FAIL_BEFORE, faults.DROP_BEFORE, faults.HANG_BEFORE]
SILENT = [faults.SILENCE, faults.HANG_BEFORE, None]  # what a client notices by its time-out alone; None: a delay
SDK_ATTEMPTS = 3  # store.CLIENT_CONFIG
LATE_S = 0.5  # longer than the hasty client reads


def named(fault: Fault) -> str:
    return fault.kind.name.lower()


@pytest.fixture(params=[False, True], ids=["tokens", "no tokens"])
def lossy(request: pytest.FixtureRequest, make_world: Callable[..., World]) -> World:
    """A world with the SDK's tokens, and without them as after ten minutes; its client gives up soon if it must."""
    world = make_world(hasty=request.node.callspec.params.get("fault") in SILENT)
    world.proxy.strip_tokens = request.param
    return world


@pytest.mark.parametrize("fault", DONE_BUT_LOST, ids=named)
def test_sdk_retry_after_lost_response_counts_once_and_is_a_first_answer(lossy: World, fault: Fault) -> None:
    lossy.proxy.plan = faults.script({"TransactWriteItems": [fault]})
    assert lossy.play("key-1") == ({"video_id": VIDEO, "counted": True, "visible": "now"}, False)
    assert len(lossy.sent("TransactWriteItems", forwarded=True)) >= 2
    assert lossy.shards() == {"STATS#TOTAL": 1}
    assert len(lossy.receipts()) == 1


@pytest.mark.parametrize("fault", NOT_DONE, ids=named)
def test_sdk_retry_after_lost_request_counts_once(lossy: World, fault: Fault) -> None:
    lossy.proxy.plan = faults.script({"TransactWriteItems": [fault]})
    assert lossy.play("key-1") == ({"video_id": VIDEO, "counted": True, "visible": "now"}, False)
    assert len(lossy.sent("TransactWriteItems")) >= 2
    assert lossy.tally() == 1


@pytest.mark.parametrize("fault", [faults.LOSE_RESPONSE, faults.FAIL_AFTER, faults.SILENCE], ids=named)
def test_caller_retry_after_all_answers_were_lost_counts_once_with_the_same_body(lossy: World, fault: Fault) -> None:
    lossy.proxy.plan = faults.script({"TransactWriteItems": [fault] * SDK_ATTEMPTS})
    with pytest.raises(StoreUnreachableError):
        lossy.play("key-1")
    assert lossy.tally() == 1
    assert lossy.play("key-1") == ({"video_id": VIDEO, "counted": True, "visible": "now"}, True)
    assert lossy.play("key-1") == ({"video_id": VIDEO, "counted": True, "visible": "now"}, True)
    assert lossy.tally() == 1
    assert len(lossy.receipts()) == 1


def test_retry_after_answers_that_were_cut_counts_once(lossy: World) -> None:
    lossy.proxy.plan = faults.script({"TransactWriteItems": [faults.TRUNCATE] * SDK_ATTEMPTS})
    persist(lambda: lossy.play("key-1"))  # the SDK may take a cut 200 for an answer, and rightly: it was done
    assert lossy.play("key-1") == ({"video_id": VIDEO, "counted": True, "visible": "now"}, True)
    assert lossy.tally() == 1


@pytest.mark.parametrize("read", [World.read_plays, World.read_post], ids=["plays", "post"])
def test_read_whose_answers_are_all_cut_is_unreachable_and_never_a_wrong_number(
    world: World, read: Callable[[World], object]
) -> None:
    world.write_post()
    world.play("key-1")
    world.proxy.plan = faults.always(faults.TRUNCATE, "Query")
    with pytest.raises(StoreUnreachableError):
        read(world)


@pytest.mark.parametrize("fault", NOT_DONE, ids=named)
def test_caller_retry_after_nothing_arrived_counts_once_as_a_first_answer(lossy: World, fault: Fault) -> None:
    lossy.proxy.plan = faults.script({"TransactWriteItems": [fault] * SDK_ATTEMPTS})
    with pytest.raises(StoreUnreachableError):
        lossy.play("key-1")
    assert lossy.items() == lossy.receipts() == []
    assert lossy.play("key-1") == ({"video_id": VIDEO, "counted": True, "visible": "now"}, False)
    assert lossy.tally() == 1


def test_request_that_arrives_after_its_own_retry_counts_once(lossy: World) -> None:
    lossy.proxy.plan = faults.script({"TransactWriteItems": [faults.delay(LATE_S)]})
    assert lossy.play("key-1") == ({"video_id": VIDEO, "counted": True, "visible": "now"}, False)
    lossy.proxy.settle()
    assert len(lossy.sent("TransactWriteItems", forwarded=True)) >= 2
    assert lossy.tally() == 1


def test_keyed_like_that_arrives_after_its_retry_and_an_unlike_does_not_like_again(lossy: World) -> None:
    lossy.write_post()
    lossy.proxy.plan = faults.script({"TransactWriteItems": [faults.delay(LATE_S)]})
    assert lossy.like("ann", key="key-1") == (
        {"post_id": POST, "liked": True, "changed": True, "visible": "now"},
        False,
    )
    assert lossy.unlike("ann", key="key-2")[0]["changed"] is True
    lossy.proxy.settle()
    assert lossy.likes() == (0, set())


@pytest.mark.parametrize("fault", DONE_BUT_LOST, ids=named)
@pytest.mark.parametrize("key", [None, "key-1"], ids=["no key", "key"])
def test_sdk_retry_of_a_like_likes_once_and_says_that_it_changed(lossy: World, fault: Fault, key: str | None) -> None:
    lossy.write_post()
    lossy.proxy.plan = faults.script({"TransactWriteItems": [fault]})
    assert lossy.like("ann", key=key) == ({"post_id": POST, "liked": True, "changed": True, "visible": "now"}, False)
    assert lossy.likes() == (1, {"ann"})


@pytest.mark.parametrize("fault", DONE_BUT_LOST, ids=named)
def test_sdk_retry_of_a_keyed_unlike_unlikes_once_and_says_that_it_changed(lossy: World, fault: Fault) -> None:
    lossy.write_post()
    lossy.like("ann")
    lossy.like("bob")
    lossy.proxy.plan = faults.script({"TransactWriteItems": [fault]})
    assert lossy.unlike("ann", key="key-1") == (
        {"post_id": POST, "liked": False, "changed": True, "visible": "now"},
        False,
    )
    assert lossy.likes() == (1, {"bob"})


def test_sdk_retry_of_an_unlike_without_a_key_unlikes_once(lossy: World) -> None:
    lossy.write_post()
    lossy.like("ann")
    lossy.like("bob")
    lossy.proxy.plan = faults.script({"TransactWriteItems": [faults.LOSE_RESPONSE]})
    assert lossy.unlike("ann")[0]["liked"] is False  # without token and key nobody can say whether it was us
    assert lossy.likes() == (1, {"bob"})


@pytest.mark.parametrize("code", ["TransactionInProgressException", "ThrottlingException", "RequestLimitExceeded"])
def test_busy_answer_to_a_transaction_that_went_through_counts_once_as_a_first_answer(world: World, code: str) -> None:
    world.proxy.strip_tokens = True
    world.proxy.plan = faults.script({"TransactWriteItems": [faults.answer_after(code)] * (SDK_ATTEMPTS + 1)})
    assert world.play("key-1") == ({"video_id": VIDEO, "counted": True, "visible": "now"}, False)
    assert world.tally() == 1


def test_fast_can_double_where_exact_does_not(world: World) -> None:
    world.proxy.plan = faults.script({
        "UpdateItem": [faults.LOSE_RESPONSE], "TransactWriteItems": [faults.LOSE_RESPONSE],
    })  # fmt: skip
    world.play("key-1", counter=FAST)
    world.play("key-1")
    assert world.tally(FAST) == 2  # as documented: an ambiguous retry can count twice
    assert world.tally(counters.PLAYS) == 1


def test_each_attempt_of_ours_has_a_token_of_its_own_and_the_sdk_keeps_it(world: World) -> None:
    world.proxy.plan = faults.script({"TransactWriteItems": [faults.FAIL_BEFORE, faults.CONFLICT]})
    world.play("key-1")
    first, sdk_retry, ours = (sent["ClientRequestToken"] for sent in world.sent("TransactWriteItems"))
    assert first == sdk_retry != ours


def test_answer_and_receipt_are_one_value(world: World) -> None:
    body, _ = world.play("key-1")
    assert json.loads(world.receipt()["data"]["S"]) == body


def test_play_that_an_engine_lost_power_over_counts_once(
    settings: Settings, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The engine is killed with the answer still under way; its tokens are gone, its data are not."""
    engine = Engine(tmp_path_factory.mktemp("engine") / "data.db")
    try:
        with FaultProxy(engine.start().endpoint) as proxy:
            raw, client = dynamodb_client(endpoint_url=engine.endpoint), dynamodb_client(endpoint_url=proxy.endpoint)
            create_tables(raw, settings)
            world = World(Store(client, settings), proxy, raw)
            proxy.plan = faults.always(faults.LOSE_RESPONSE)
            with pytest.raises(StoreUnreachableError):
                world.play("key-1")
            engine.kill()
            engine.stop()
            with pytest.raises(StoreUnreachableError):
                world.play("key-1")
            engine.start()
            proxy.plan = faults.no_faults
            assert world.play("key-1")[1] is True
            assert world.tally() == 1
            client.close()
            raw.close()
    finally:
        engine.stop()
