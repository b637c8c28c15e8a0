"""`tally forget` removes each trace of a user from items and tallies, and touches no trace of another user."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import counters
from tally import fields
from tally.cli import __main__ as command
from tally.cli import connection
from tally.cli.connection import Stack
from tally.counting import changing, children, deletion, hold_items, holds, increments, posts, settling, tallies
from tally.counting.increments import Increment
from tally.drift import history
from tally.dynamo import keys
from tally.dynamo.client import Call
from tally.maintenance import forgetting
from tally.maintenance.forgetting import TraceKind
from tally.streams import dead_letters
from tests.invariants.deployment import LIKES, Deployment
from tests.invariants.world import World, before_transactions, killing_at
from tests.tiers import marked_long

USER = "auth0|7c20"
QUOTED = fields.user(USER, "user")  # percent-encoded, as in items
ITEM = "mug"
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(deployment: Deployment, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the command on the store of this deployment. Returns its exit code, its output and its error output."""
    monkeypatch.setattr(
        connection, "local_stack", lambda _, declared: Stack(deployment.store, deployment.objects, declared)
    )

    def run(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        try:
            code = command.main([*arguments, "--local"])
        except SystemExit as stopped:
            code = int(stopped.code or 0)
        output = capsys.readouterr()
        return code, output.out, output.err

    return run


def forget_user(run: Run, user: str = USER) -> tuple[int, str, str]:
    return run("forget", "--user", user, "--yes", "--by", "ann", "--why", "asked on 3 May")


def place_hold(deployment: Deployment, caller: str = QUOTED, amount: int = 1, ttl_s: int = 3600) -> str:
    call, key = Call(deployment.store, caller), random.randbytes(12).hex()
    return str(holds.place(call, counters.STOCK, ITEM, amount, ttl_s, operation="hold", key=key).body["hold"])


def add_stock(deployment: Deployment, amount: int) -> None:
    body = {"counter": "stock", "id": ITEM, "counted": True}
    key = random.randbytes(12).hex()
    increments.count(Call(deployment.store), Increment(counters.STOCK, ITEM, amount, "increment", key, body))


def leave_traces(deployment: Deployment) -> None:
    """Store two posts, four likes, two memberships and two holds of the user, and traces of other users."""
    for post in ("own1", "own2"):
        posts.write_post(Call(deployment.store, QUOTED), LIKES, post, "mine")
        deployment.like("bob", post=post)
    for post in ("a", "b"):
        deployment.post(likers=3, post=post)
        deployment.like(QUOTED, post=post)
    deployment.like(QUOTED, post="own1")
    deployment.post(post="c")
    deployment.store.breaker.trip("POST#c")  # so the like spills
    deployment.like(QUOTED, post="c")
    deployment.store.breaker.trip("WORKSPACE#hot")
    for workspace in ("acme", "hot"):
        for user in (QUOTED, "bob"):
            children.set_child(Call(deployment.store, "shop"), counters.MEMBERS, workspace, user, True)
    add_stock(deployment, 10)
    for caller in (QUOTED, QUOTED, "shop"):
        place_hold(deployment, caller)


def find_traces(deployment: Deployment) -> list[forgetting.Trace]:
    return [trace for page in forgetting.find_traces(deployment.store, counters.COUNTERS, QUOTED) for trace in page]


def trace_names(deployment: Deployment) -> list[str]:
    """Returns the kind and the id of each trace of the user; of a hold only the kind, because its id is random."""
    return sorted(
        f"{trace.kind.value} {trace.id if trace.kind is not TraceKind.HOLD else ''}".strip()
        for trace in find_traces(deployment)
    )


CHILDREN = ["child a", "child acme", "child b", "child c", "child hot", "child own1"]
ALL_TRACES = [*CHILDREN, "hold", "hold", "post own1", "post own2"]


def keys_that_name_the_user(world: World) -> list[str]:
    """Returns the keys of the stored items that name the user, without the items that TTL or the sweep will remove."""
    keys_ = []
    for table in ("counts", "ledger", "receipts"):
        for item in world.scan(table):
            is_removed_later = "expiration" in item or tallies.TOMBSTONE in item
            if not is_removed_later and (USER in str(item) or QUOTED in str(item)):
                keys_.append(str(item.get("SK", item.get("id"))))
    return keys_


def test_a_dry_run_counts_the_traces_of_the_user_and_writes_nothing(
    deployment: Deployment, run: Run, world: World
) -> None:
    leave_traces(deployment)
    items_before = world.items()
    assert run("forget", "--user", USER) == (1, "found    2 posts, 6 children, 2 holds\n", "")
    assert world.items() == items_before
    assert run("forget", "--user", "nobody") == (0, "there is no data of this user\n", "")
    assert run("history", "--user", USER) == (0, "this user was never erased\n", "")


def test_holds_and_posts_of_a_user_are_found_if_no_counter_counts_users(deployment: Deployment) -> None:
    posts.write_post(Call(deployment.store, QUOTED), LIKES, "own1", "mine")
    add_stock(deployment, 1)
    place_hold(deployment)
    stock = {"stock": counters.STOCK}
    found = [trace for page in forgetting.find_traces(deployment.store, stock, QUOTED) for trace in page]
    assert {trace.kind for trace in found} == {TraceKind.HOLD, TraceKind.POST}


@pytest.mark.parametrize("ttl_s", [None, 900], ids=["at the same key", "at another key"])
def test_a_hold_that_is_changed_or_settled_after_the_command_found_it_is_removed_too(
    deployment: Deployment, run: Run, world: World, monkeypatch: pytest.MonkeyPatch, ttl_s: int | None
) -> None:
    """The key of a hold has the time when the hold expires, so a change with a new `ttl_s` moves the hold."""
    add_stock(deployment, 10)
    changed_hold, settled_hold = place_hold(deployment), place_hold(deployment)
    forget = forgetting.forget_trace

    def forget_after_changes(*arguments: Any) -> None:
        monkeypatch.setattr(forgetting, "forget_trace", forget)
        options: dict[str, str] = {"operation": "change_hold", "key": random.randbytes(12).hex()}
        changing.change_hold(Call(deployment.store), counters.STOCK, ITEM, changed_hold, 5, ttl_s, **options)
        settling.settle(Call(deployment.store), counters.STOCK, ITEM, settled_hold, hold_items.COMMITTED)
        forget(*arguments)

    monkeypatch.setattr(forgetting, "forget_trace", forget_after_changes)
    assert forget_user(run)[:2] == (0, "removed  0 posts, 0 children, 2 holds\nnothing is left\n")
    assert trace_names(deployment) == keys_that_name_the_user(world) == []
    assert world.tally(counters.STOCK, ITEM) == 10 - 1, "the changed hold is released, and the commit stays"


def test_every_trace_of_the_user_and_no_other_is_removed_and_the_history_does_not_have_the_name(
    deployment: Deployment, run: Run, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An expired hold is removed, too. The command writes the run into the history before it removes anything. So a run
    that is killed is in the history, too."""
    monkeypatch.setattr(deletion, "TOMBSTONE_KEPT_S", 60)  # so the sweeps below finish the removal of the posts
    leave_traces(deployment)
    place_hold(deployment, amount=4, ttl_s=60)
    deployment.skip(120)
    assert trace_names(deployment) == sorted([*ALL_TRACES, "hold"])
    dead_letter_write = dead_letters.store_and_mark(
        Call(deployment.store), deployment.objects, "bookkeeper", "counts", "s-0", "7", {}, "for a test"
    )
    deployment.store.client.put_item(**dead_letter_write["Put"])
    runs_at_start: list[Any] = []
    raw_store = replace(deployment.store, client=world.raw)
    world.proxy.plan = before_transactions({0: lambda: runs_at_start.extend(history.forget_runs(raw_store, USER))})
    code, out, err = forget_user(run)
    assert (code, out) == (0, "removed  2 posts, 6 children, 3 holds\nnothing is left\n")
    assert len(runs_at_start) == 1
    assert "there are dead letters, which may name the user" in err
    assert "the sweep removes the likes of the posts" in err
    assert "failed events may name the user for 14 more days" in err
    assert trace_names(deployment) == []
    for _ in range(3):
        deletion.sweep(deployment.store, counters.COUNTERS, until_s=float("inf"))
        deployment.run(1)
    assert keys_that_name_the_user(world) == []
    for post in ("a", "b"):
        assert world.likes(post) == (3, {"u0", "u1", "u2"})
    assert tallies.read(Call(deployment.store), counters.STOCK, ITEM) == 10 - 1, "the shop has its hold"
    deployment.run_without_drift()
    assert tallies.read(Call(deployment.store), LIKES, "c") == 0
    assert run("forget", "--user", USER)[0] == 0
    rows = world.rows("HISTORY")
    assert len(rows) == 1
    assert not [text for text in (USER, QUOTED, "7c20") if text in str(rows)]
    _, printed, _ = run("history", "--user", USER)
    assert printed.endswith(" UTC  removed 2 posts, 6 children, 3 holds, by ann: asked on 3 May\n")
    [entry] = [json.loads(line) for line in run("history", "--user", USER, "--json")[1].splitlines()]
    assert {name: entry[name] for name in ("by", "posts", "children", "holds", "found", "finished")} == {
        "by": "ann", "posts": 2, "children": 6, "holds": 3, "found": 11, "finished": True,
    }  # fmt: skip


@pytest.mark.parametrize("transaction_number", [2, *marked_long([0, 5])])
def test_a_second_run_finishes_what_a_stopped_run_left(
    deployment: Deployment, run: Run, transaction_number: int
) -> None:
    leave_traces(deployment)
    options: dict[str, Any] = {"before": False, "operation": "TransactWriteItems", "error": KeyboardInterrupt}
    with killing_at(deployment.store, transaction_number, **options):
        assert forget_user(run) == (130, "", "tally: stopped\n")
    traces_left = len(trace_names(deployment))
    assert 0 < traces_left < 10
    deployment.skip(5)  # the history sorts runs by their times, so the second run needs a later time
    assert forget_user(run)[0] == 0
    assert trace_names(deployment) == []
    first, second = history.forget_runs(deployment.store, USER)
    assert (first["found"], first["finished"], second["found"], second["finished"]) == (10, False, traces_left, True)
    assert sum(second[kind] for kind in ("posts", "children", "holds")) == traces_left
    assert run("history", "--user", USER)[1].count("not finished, of 10") == 1
    deployment.run_without_drift()
    assert tallies.read(Call(deployment.store), counters.STOCK, ITEM) == 10 - 1


def test_the_command_names_traces_that_it_cannot_remove_and_removes_the_others(
    deployment: Deployment, run: Run, world: World
) -> None:
    """The traces are a like whose post was deleted manually, and a hold of a counter that is not declared."""
    leave_traces(deployment)
    world.delete(keys.key("POST#a", "META"))
    ledger = deployment.store.settings.ledger_table
    undeclared = {"PK": {"S": "HOLDS#3"}, "SK": {"S": "1-x#old/x"}, "caller": {"S": QUOTED}, "state": {"S": "held"}}
    undeclared |= {"counter": {"S": "old"}, "target": {"S": "x"}, "hold_id": {"S": "1-x"}, "amount": {"N": "1"}}
    world.raw.put_item(TableName=ledger, Item=undeclared)
    code, out, err = forget_user(run)
    assert (code, out) == (1, "removed  2 posts, 5 children, 2 holds\n2 left: run this command again\n")
    assert "child a: There is no post a." in err
    assert "hold 1-x: The counter old is not declared." in err
    [entry] = history.forget_runs(deployment.store, USER)
    assert entry["finished"] is False


def test_the_command_leaves_children_of_removed_parents_to_the_sweep(deployment: Deployment) -> None:
    leave_traces(deployment)
    traces = find_traces(deployment)
    posts.delete_post(Call(deployment.store, "author"), LIKES, "a")
    deletion.remove_parent(Call(deployment.store), counters.MEMBERS, "acme")
    for trace in traces:
        if trace.id in ("a", "acme"):
            forgetting.forget_trace(Call(deployment.store, QUOTED), counters.COUNTERS, trace)
    assert {"child acme", "child a"} <= {*trace_names(deployment)}
    # To remove a post a second time, or a post that is not stored, does nothing.
    [post] = [trace for trace in traces if (trace.kind, trace.id) == (TraceKind.POST, "own1")]
    for trace in (post, post, post._replace(id="removed for good")):
        forgetting.forget_trace(Call(deployment.store, QUOTED), counters.COUNTERS, trace)
    assert "child own1" in trace_names(deployment)
    deletion.sweep(deployment.store, counters.COUNTERS, until_s=float("inf"))
    assert trace_names(deployment) == ["child b", "child c", "child hot", "hold", "hold", "post own2"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("forget",), "the following arguments are required: --user"),
        (("forget", "--user", USER, "--by", "ann", "--why", "x"), "--by and --why go with --yes"),
        (("forget", "--user", USER, "--yes", "--by", "ann", "--why", f"{USER} asked"), "must not name the user"),
        (("history",), "history takes ID, --user ID, --imports, or --losses"),
    ],
)
def test_a_wrong_command_line_gets_an_error_of_one_line(run: Run, arguments: tuple[str, ...], message: str) -> None:
    code, out, err = run(*arguments)
    assert (code, out, message in err, err.count("\n")) == (2, "", True, 1)


@pytest.mark.long
def test_a_search_for_a_user_costs_the_documented_units(deployment: Deployment, world: World) -> None:
    """A million likes cost 40,000 read units (docstring of `forgetting`), so 200 likes cost 8 at most. The ledger keeps
    holds in 16 partitions, and a query of each partition costs 1 unit."""
    post = str(uuid.uuid4())
    deployment.post(post=post)
    for _ in range(200):
        deployment.like(str(uuid.uuid4()), post=post)
    with world.measure_units() as measured:
        list(forgetting.find_traces(deployment.store, counters.COUNTERS, "nobody"))
    assert [units for name, units in measured if name == "Query"] == [1.0] * 16
    [units] = [units for name, units in measured if name == "Scan"]
    assert units == 7
