"""The client against `make dev`: functions in processes of their own, behind Lambda's Invoke API."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from tally import errors, requests
from tally.client import Tally
from tests.e2e.dev import Dev
from tests.patience import wait_for

MUG = ("stock", "client-mug")


@pytest.fixture
def tally(dev: Dev, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tally]:
    """A Tally as a consumer makes it."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_LAMBDA", dev.url)
    made = Tally.from_environment({"TALLY_FUNCTION_PREFIX": ""}, caller="checkout")
    yield made
    made.lambda_client.close()


def test_a_consumer_counts_holds_and_reads(tally: Tally) -> None:
    assert tally.health().status == "ok"
    tally.increment(*MUG, 3)
    hold = tally.hold(*MUG, 2, 60)
    assert tally.commit_hold(*MUG, hold.hold_id).state == "committed"
    assert tally.get_counter(*MUG).value == 1
    with pytest.raises(errors.LimitReachedError) as refused:
        tally.increment(*MUG, -2)
    assert refused.value.left == 1
    assert tally.get_own_receipt("hold", "/".join(MUG), "nothing").counted is False


def test_a_batch_of_a_consumer_is_packed_and_answered_entry_by_entry(tally: Tally) -> None:
    results = tally.batch([*[requests.play("client-1") for _ in range(120)], requests.get_plays("client-1")])
    assert results[:120] == [requests.Counted(replayed=False)] * 120
    assert results[120] == requests.Plays("client-1", 120)


def test_an_enqueued_play_counts_later(tally: Tally) -> None:
    tally.enqueue(requests.play("client-2"))
    wait_for(lambda: tally.get_plays("client-2").play_count == 1)


def test_an_enqueued_batch_counts_later(tally: Tally) -> None:
    tally.enqueue_batch([requests.play("client-4") for _ in range(120)])
    wait_for(lambda: tally.get_plays("client-4").play_count == 120)


def test_a_call_whose_function_is_killed_is_counted_once(tally: Tally, dev: Dev) -> None:
    """Kill the idle processes: the next call fails and retries, or starts a new process."""
    for number in range(5):
        tally.play("client-3", idempotency_key=f"client-3-0123456789-{number}")
        for worker in dev.workers("plays"):
            os.kill(worker, signal.SIGKILL)
    assert tally.get_plays("client-3").play_count == 5


def test_a_missing_function_is_a_configuration_error(tally: Tally) -> None:
    with pytest.raises(errors.ConfigurationError, match="ResourceNotFoundException"):
        Tally({"plays": "nobody"}, lambda_client=tally.lambda_client).play("9f3a")
