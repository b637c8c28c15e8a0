"""Tests the Python client, and the commands `count` and `limit`, which invoke the functions of `make dev`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from urllib.parse import quote

import pytest

from tally import errors
from tally.client import Tally, requests
from tests.commands import run_command
from tests.e2e.dev import Dev
from tests.patience import wait_for

MUG = ("stock", "client-mug")
KEY = "k" * 22  # the shortest key of an anonymous caller


@pytest.fixture
def tally(dev: Dev, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tally]:
    """A client that is made as a service makes a client."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_LAMBDA", dev.url)
    client = Tally.from_environment({"TALLY_FUNCTION_PREFIX": ""}, caller="checkout")
    yield client
    client.lambda_client.close()


def test_a_service_counts_holds_commits_and_reads(tally: Tally) -> None:
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


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(dev: Dev, capsys: pytest.CaptureFixture[str]) -> Run:
    """Returns a function that runs the command `tally` on `make dev`: (exit status, output, errors)."""
    return lambda *arguments: run_command(capsys, *arguments, "--local", "--port", str(dev.port))


def test_the_command_count_counts_once_for_each_key(dev: Dev, run: Run) -> None:
    count = partial(run, "count")
    status, printed, _ = count("plays", "command-1")
    assert (status, printed.partition(" (")[0]) == (0, "plays command-1: counted, and is 1")
    printed_key = printed.partition("--key ")[2].rstrip(")\n")
    assert count("plays", "command-1", "--key", printed_key)[1].startswith("plays command-1: was counted before")
    assert dev.plays("command-1") == 1
    assert count("stock", "command-2", "--amount", "3")[1].startswith("stock command-2: counted, and is 3 ")
    # `[::2]`: the exit status and the errors.
    assert count("stock", "command-2", "--amount", "-5")[::2] == (1, "tally: 3 left. Nothing was counted.\n")
    assert "visible within seconds" in count("visits", "https://example.com/command")[1]
    assert count("hearts", "command-3")[0] == 2  # hearts counts children
    answers = [count("readers", "command-4", "--visitor", "ann")[1].partition(": ")[2] for _ in range(2)]
    assert answers == ["counted\n", "was counted before, and not again\n"]
    assert count("readers", "command-4")[0] == 2, "readers counts visitors, and no visitor is named"
    assert count("usage", "command-4", "--visitor", "ann")[0] == 2, "usage counts no visitors"


def test_the_command_limit_sets_and_deletes_the_override_of_an_id(run: Run) -> None:
    limit, export = partial(run, "limit"), partial(run, "export", "--limits")
    assert limit("calls", "command-4")[:2] == (0, "calls command-4: 1000, as declared\n")
    assert limit("calls", "command-4", "20")[:2] == (0, "calls command-4: 20, its own\n")
    refusal = "tally: There is room for 20 more. Nothing was counted.\n"
    assert run("count", "calls", "command-4", "--amount", "21")[::2] == (1, refusal)
    status, printed, _ = export("calls")
    assert (status, printed.splitlines()[0], "command-4,20" in printed.splitlines()) == (0, "id,limit", True)
    assert limit("calls", "command-4", "--declared")[1] == "calls command-4: 1000, as declared\n"
    assert "command-4" not in export("calls")[1]
    refused = limit("calls", "command-4", "-5")
    assert (refused[0], refused[2].partition(",")[0]) == (2, "tally: limit is -5")
    for wrong in (["5", "--declared"], ["1e3"], ["1000000000000001"], ["many"], ["--key", "k"]):
        assert limit("calls", "command-4", *wrong)[:2] == (2, ""), wrong
    # A counter without overrides, the id of a period, and no counter.
    for counter, id_ in (("stock", "mug"), ("calls", "command-4#2026-11-22"), ("none", "mug")):
        assert limit(counter, id_, "5")[:2] == (2, ""), counter
    assert export("stock")[0] == 2  # stock has no overrides


def test_the_client_and_the_command_count_an_id_of_any_text_in_the_same_tally(tally: Tally, dev: Dev, run: Run) -> None:
    path, id_ = "/films/привет и пока/", quote("/films/привет и пока/", safe="").replace("%", "~")
    assert tally.increment("plays", path, idempotency_key=KEY)["id"] == id_
    assert tally.batch([requests.increment("plays", path)])[0]["id"] == id_  # type: ignore[index]
    assert run("count", "plays", quote(path))[0] == 0  # as a browser encodes the path
    assert tally.get_tallies([f"plays:{path}"])["tallies"][0]["value"] == dev.plays(id_) == 3
    assert run("get", "plays", path)[1].startswith(f"plays {id_}: 3\n")
    [receipt] = tally.get_any_receipts("increment", [f"plays/{path}"], [KEY])["receipts"]
    assert (receipt["target"], receipt["state"]) == (f"plays/{id_}", "counted")
    assert run("limit", "calls", "acme & co", "7")[1] == "calls acme~20~26~20co: 7, its own\n"
    assert tally.get_limit("calls", "acme & co")["limit"] == 7
    refusal = "tally: There is room for 7 more. Nothing was counted.\n"
    assert run("count", "calls", "acme & co", "--amount", "8")[2] == refusal
    assert run("get", "calls", f"acme & co#{datetime.now(UTC):%Y-%m-%d}")[0] == 0
    unencoded = dev.call("GET", "/tallies?of=plays:/films/x/")
    assert unencoded.status == 200
    assert unencoded.body["tallies"][0]["error"]["detail"].endswith(": write ~2Ffilms~2Fx~2F")
    wrong = dev.call("GET", f"/receipts?of=increment&target=plays//films/x/&key={KEY}")
    assert (wrong.status, wrong.body["field"]) == (400, "target")  # the id of a target must be encoded
