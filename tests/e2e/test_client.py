"""The client against `make dev`: functions in processes of their own, behind Lambda's Invoke API."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tally import errors
from tally.client import Tally, requests
from tests.commands import ran
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
    assert tally.health()["status"] == "ok"
    tally.increment(*MUG, amount=3)
    hold = tally.hold(*MUG, 2, 60)
    assert tally.commit_hold(*MUG, hold["hold"])["state"] == "committed"
    assert tally.get_counter(*MUG)["value"] == 1
    with pytest.raises(errors.LimitReachedError) as refused:
        tally.increment(*MUG, amount=-2)
    assert refused.value.left == 1


def test_an_enqueued_play_counts_later(tally: Tally) -> None:
    tally.enqueue(requests.increment("plays", "client-2"))
    wait_for(lambda: tally.get_counter("plays", "client-2")["value"] == 1)


def test_the_command_counts_once_for_its_key(dev: Dev, capsys: pytest.CaptureFixture[str]) -> None:
    def count(*arguments: str) -> tuple[int, str, str]:
        return ran(capsys, "count", *arguments, "--local", "--port", str(dev.port))

    status, printed, _ = count("plays", "command-1")
    assert (status, printed.partition(" (")[0]) == (0, "plays command-1: counted, and is 1")
    again = printed.partition("--key ")[2].rstrip(")\n")
    assert count("plays", "command-1", "--key", again)[1].startswith("plays command-1: was counted before")
    assert dev.plays("command-1") == 1
    assert count("stock", "command-2", "--amount", "3")[1].startswith("stock command-2: counted, and is 3 ")
    assert count("stock", "command-2", "--amount", "-5")[::2] == (1, "tally: 3 are left. Nothing was counted.\n")
    assert "visible within seconds" in count("visits", "https://example.com/command")[1]
    assert count("hearts", "command-3")[0] == 2
    seen = [count("readers", "command-4", "--visitor", "ann")[1].partition(": ")[2] for _ in range(2)]
    assert seen == ["counted\n", "was counted before, and is not again\n"]
    assert [count("readers", "command-4")[0], count("usage", "command-4", "--visitor", "ann")[0]] == [2, 2]


def test_the_command_gives_an_id_a_limit_of_its_own(dev: Dev, capsys: pytest.CaptureFixture[str]) -> None:
    def limit(*arguments: str) -> tuple[int, str, str]:
        return ran(capsys, "limit", *arguments, "--local", "--port", str(dev.port))

    assert limit("calls", "command-4")[:2] == (0, "calls command-4: 1000, as declared\n")
    assert limit("calls", "command-4", "20")[:2] == (0, "calls command-4: 20, its own\n")
    counted = ran(capsys, "count", "calls", "command-4", "--amount", "21", "--local", "--port", str(dev.port))
    assert counted[::2] == (1, "tally: There is room for 20 more. Nothing was counted.\n")
    export = ("export", "calls", "--limits", "--local", "--port", str(dev.port))
    code, out, _ = ran(capsys, *export)
    assert (code, out.splitlines()[0], "command-4,20" in out.splitlines()) == (0, "id,limit", True)
    assert limit("calls", "command-4", "--declared")[1] == "calls command-4: 1000, as declared\n"
    assert "command-4" not in ran(capsys, *export)[1]
    assert limit("calls", "command-4", "-5")[1] == "calls command-4: -5, its own\n"
    for wrong in (["5", "--declared"], ["1e3"], ["1000000001"], ["many"], ["--key", "k"]):
        assert limit("calls", "command-4", *wrong)[:2] == (2, ""), wrong
    for counter, id_ in (("stock", "mug"), ("calls", "command-4#2026-11-22"), ("none", "mug")):
        assert limit(counter, id_, "5")[:2] == (2, ""), counter
    assert ran(capsys, "export", "stock", "--limits", "--local", "--port", str(dev.port))[0] == 2
