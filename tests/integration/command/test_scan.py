"""`tally scan` counts the items of a team's table. `tally check` and `tally repair` compare numbers with the items."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tally.cli import scan
from tally.cli.connection import Stack
from tally.cli.scan import Throttle
from tally.counter import Counter
from tally.drift import rows
from tally.dynamo import clock, keys
from tally.dynamo.client import Store
from tally.dynamo.transactions import try_commit
from tally.errors import ConfigurationError
from tally.streams import fingerprints
from tally.team import faults, first_seen, health, scan_state
from tests.commands import run_command
from tests.integration.command.numbers import mark_judged
from tests.integration.command.team import COUNTERS, COUNTERS_FILE, ORDERS, Team
from tests.invariants.processes import Crash, WatchedClient, client_that_dies

SIGNED = "--by ann --why test --yes"
NOT_COUNTED = (
    "orders counts items of the table shop, and the items in the table are not counted yet: run `tally scan orders`."
)
NOT_COUNTED_LINE = f"tally: {NOT_COUNTED}\n"
COUNTS_ITEMS = "orders counts items of the table shop: it moves when an item is written there."


@pytest.fixture
def team(make_team: Callable[[Mapping[str, Counter]], Team]) -> Team:
    return make_team(COUNTERS)


def test_a_scan_prints_its_cost_asks_and_counts_the_items_while_the_team_writes(
    team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    team.old_orders()
    message = "tally: this command asks before it starts, and stdin is not a terminal: add --yes\n"
    assert team("scan orders") == (2, "", message)
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
    questions: list[str] = []
    monkeypatch.setattr("builtins.input", lambda question: questions.append(question) or "")
    code, _, err = team("scan orders")
    assert (code, questions, err.splitlines()[-1]) == (2, ["Scan it? [y/N] "], "tally: nothing is scanned")
    assert err.startswith("tally: shop has about ")
    assert team("get orders a")[::2] == (2, NOT_COUNTED_LINE)
    monkeypatch.setattr("builtins.input", lambda question: "y")
    watched = WatchedClient(team.store.client)
    watched.after = lambda number: write_during_scan(team, number)
    code, out, err = team("scan orders", watched)
    assert err.splitlines()[-1] == (  # in minutes: CLOCK_SLACK + SWEEP_DELAY_MINUTES = 7
        "tally: read everything. Waiting for the consumer to catch up with shop: about 420 s"
    )
    assert (code, out) == (0, "orders is counted: 122 items read, 5 groups, 4 numbers set\n")  # `new` was counted
    assert team.numbers("orders") == team.truth("orders")
    assert json.loads(team("get orders a --json")[1])["value"] == team.truth("orders")["a"]
    code, out, _ = team("export orders")
    lines = ["id,value", *(f"{id_},{number}" for id_, number in team.truth("orders").items())]
    assert (code, sorted(out.split())) == (0, sorted(lines))
    team.order("a", 999)
    team.drain()
    assert team.numbers("orders") == team.truth("orders")
    assert team("scan orders")[:2] == (
        0, "orders is counted already: `tally check orders` shows what differs, --again starts a new scan\n",
    )  # fmt: skip


def write_during_scan(team: Team, number: int) -> None:
    """Open, close and delete orders of the team after write `number` of the scan. The first write is 0. The consumer
    passes the first two orders at once, and the later writes while the command waits."""
    if number == 1:  # the scan has begun
        team.order("new", 1)
        team.order("a", 4, "closed")
        team.drain()
        team.order("a", 500)
    if number == 3:  # the scan has counted the second half of the items
        team.delete("CUSTOMER#b", "ORDER#1")
        team.order("a", 0, "open")


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("last_write", range(7))
def test_a_killed_scan_continues_where_it_stopped(team: Team, last_write: int, committed: bool) -> None:
    """A scan has seven writes: the schema fingerprint, the scan's start, two batches of items, the end of the
    table, four numbers at once, and the scan's end."""
    team.old_orders()
    with pytest.raises(Crash):
        team("scan orders --yes", client_that_dies(team.store.client, last_write, committed=committed))
    team.order("a", 500)
    team.delete("CUSTOMER#b", "ORDER#1")
    code, out, err = team("scan orders --yes")
    has_begun = last_write > 1 or (last_write == 1 and committed)
    has_ended = last_write == 6 and committed
    assert (code, "tally: the scan continues: " in err) == (0, has_begun and not has_ended), err
    assert out.startswith("orders is counted")
    team.drain()
    assert team.numbers("orders") == team.truth("orders")
    assert team("check orders --yes")[:2] == (2, "nothing is known to be wrong\n")  # no minute is judged


def test_a_restarted_scan_counts_from_the_beginning_and_reads_fail_until_it_ends(team: Team) -> None:
    team.old_orders()
    assert team("scan orders --yes")[0] == 0
    team.edit("a", 7)
    with pytest.raises(Crash):
        team("scan orders --again --yes", client_that_dies(team.store.client, 2, committed=True))
    assert team("get orders a")[::2] == (2, NOT_COUNTED_LINE)
    assert team("check orders a")[::2] == (2, NOT_COUNTED_LINE)
    code, out, err = team("scan orders --yes --again")
    assert (code, "the scan continues" in err) == (0, False)
    assert out == "orders is counted: 120 items read, 4 groups, 1 numbers set\n"  # the edited number
    assert team.numbers("orders") == team.truth("orders")


def test_a_scan_of_another_declaration_or_of_weeks_ago_is_not_continued(
    team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    team.old_orders()
    with pytest.raises(Crash):
        team("scan orders --yes", client_that_dies(team.store.client, 3, committed=True))
    monkeypatch.setattr(clock, "now_s", lambda: time.time() + first_seen.SCAN_VALID_S + 1)
    first_generation = scan_state.read_scan(team.store, "orders").generation
    with pytest.raises(Crash):
        team("scan orders --yes", client_that_dies(team.store.client, 1, committed=True))
    second_generation = scan_state.read_scan(team.store, "orders").generation
    assert second_generation > first_generation
    assert ORDERS.items is not None
    other_orders = replace(ORDERS, items=replace(ORDERS.items, where={}))
    team.counters = {**team.counters, "orders": other_orders}
    monkeypatch.setattr(scan, "WAIT_MINUTES_MAX", 0)  # the scan need not end
    assert "the scan continues" not in team("scan orders --yes")[2]
    assert scan_state.read_scan(team.store, "orders").generation > second_generation


def test_a_killed_scan_continues_after_pages_in_which_no_item_counts(team: Team) -> None:
    """The scan stores its position after each page, also if no item of the page counts. The table has three pages, and
    the scan dies before it stores its position after the third page."""
    items = [{"PK": {"S": f"LOG#{n}"}, "SK": {"S": "X"}, "text": {"S": "x" * 30_000}} for n in range(100)]
    for first in range(0, 100, 25):
        requests = [{"PutRequest": {"Item": item}} for item in items[first : first + 25]]
        team.store.client.batch_write_item(RequestItems={team.table: requests})
    team.drain()
    with pytest.raises(Crash):
        team("scan orders --yes", client_that_dies(team.store.client, 4, committed=False))
    read_count = scan_state.read_scan(team.store, "orders").items
    assert 0 < read_count < 100
    pages = WatchedClient(team.store.client, frozenset({"scan"}))
    code, _, err = team("scan orders --yes", pages)
    assert (code, f"the scan continues: {read_count:,} items are read" in err) == (0, True)
    requests = [request for _, request in pages.calls if request["TableName"] == team.table]
    assert (len(requests), "ExclusiveStartKey" in requests[0]) == (1, True)


@dataclass
class ClientWithChangedTable:
    """A client whose DescribeTable answers with changed attributes of the team's table."""

    team: Team
    changed: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.team.store.client, name)

    def describe_table(self, **request: Any) -> Any:
        table = self.team.store.client.describe_table(**request)["Table"]
        return {"Table": {**table, **self.changed} if request["TableName"] == self.team.table else table}


OTHER_KEYS = [{"AttributeName": name, "KeyType": kind} for name, kind in (("customer", "HASH"), ("SK", "RANGE"))]


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"StreamSpecification": {"StreamEnabled": True, "StreamViewType": "NEW_IMAGE"}}, "stream has NEW_IMAGE"),
        ({"StreamSpecification": {"StreamEnabled": False}}, "the table has no stream"),
        ({"LatestStreamArn": "arn:aws:dynamodb:eu-west-1:1:table/shop/stream/2"}, "deploy the stack with this stream"),
        (
            {"KeySchema": OTHER_KEYS, "AttributeDefinitions": [
                {"AttributeName": name, "AttributeType": "S"} for name in ("customer", "SK")
            ]},
            "counter 'orders' names the keys PK and SK, but the table has customer and SK",
        ),
        ({"AttributeDefinitions": [{"AttributeName": name, "AttributeType": "B"} for name in ("PK", "SK")]}, "binary"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("line", ["scan orders --yes", "scan orders --dry-run"])
def test_a_table_that_cannot_be_counted_is_refused_before_a_scan_begins(
    team: Team, changed: dict[str, Any], why: str, line: str
) -> None:
    """The team's app has imported the table, so no deploy has checked the table."""
    team.old_orders()
    code, out, err = team(line, ClientWithChangedTable(team, changed))
    assert (code, out, err.count("\n"), why in err) == (2, "", 1, True), err
    assert err.startswith("tally: the items of the table shop cannot be counted: ")
    assert scan_state.read_scan(team.store, "orders").generation == 0


def test_a_dry_run_prints_the_cost_of_a_scan_and_writes_nothing(team: Team) -> None:
    team.old_orders()
    for number in range(900, 930):  # so many that every sample has some of these orders
        team.order("a", number, shop={"L": []}, total={"N": "1"})
    team.drain()
    code, out, err = team("scan spent --dry-run --units 10")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("shop has about 150 items. Of a sample of ")
    assert lines[0].endswith(", 0 count, in 0 groups")  # 30 orders have a fault, and 120 lack attributes
    assert re.match(r"a scan takes about [12] read units of shop, .* s at 10 units a second; ", lines[1])
    assert re.search(r"about \d+ will not count, with a group that no id can be made of", out)
    assert any(line.endswith("they lack an attribute, or `where` differs") for line in lines)
    assert scan_state.read_scan(team.store, "spent").generation == 0
    provisioned = {"ProvisionedThroughput": {"ReadCapacityUnits": 10}, "TableSizeBytes": 4096 * 100}
    out = team("scan orders --dry-run", ClientWithChangedTable(team, provisioned))[1]
    assert "100 read units of shop" in out
    assert "that is 50% of the 10 read units a second that shop has provisioned" in out  # the default is half


def test_a_scan_uses_half_of_the_provisioned_read_units(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[tuple[int, float]] = []

    class RecordingThrottle(Throttle):
        def wait_for(self, units: float) -> None:
            waits.append((self.units, units))

    monkeypatch.setattr(scan, "Throttle", RecordingThrottle)
    team.old_orders()
    provisioned = ClientWithChangedTable(team, {"ProvisionedThroughput": {"ReadCapacityUnits": 10}})
    assert team("scan orders --yes", provisioned)[0] == 0
    reads = [units for _, units in waits]
    assert ({limit for limit, _ in waits}, sum(reads)) == ({5}, max(reads))  # one read; other waits are of 0 units
    waits.clear()
    assert team("scan spent --yes --units 300", provisioned)[0] == 0
    assert {limit for limit, _ in waits} == {300}


def test_a_throttle_limits_the_units_of_a_second() -> None:
    clock = SimpleNamespace(s=100.0)
    throttle = Throttle(50, lambda: clock.s, lambda seconds: setattr(clock, "s", clock.s + seconds))
    for units in (10.0, 200.0, 0.5, 89.5):
        throttle.wait_for(units)
        clock.s += 0.1  # the work between two waits
    assert clock.s - 100 == pytest.approx(300 / 50 - scan.BURST_S + 0.1)  # 300 units, and the last 0.1 s
    Throttle(0, lambda: 0.0, pytest.fail).wait_for(1000)  # 0: no limit


def test_a_scan_waits_for_the_consumer_and_reports_a_timeout(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    team.old_orders()
    pauses_s: list[float] = []
    monkeypatch.setattr(scan.time, "sleep", pauses_s.append)
    code, out, err = team("scan orders --yes")
    assert (code, out, sum(pauses_s)) == (2, "", 60 * scan.WAIT_MINUTES_MAX)
    message = (
        "tally: timed out waiting for the consumer. Check that the functions items and sweep run, then run this again\n"
    )
    assert err.endswith(message)
    monkeypatch.setattr(scan.time, "sleep", team.sleep)
    assert team("scan orders")[0] == 0  # the scan continues without a question
    assert team.numbers("orders") == team.truth("orders")


def test_a_dead_letter_must_be_repaired_before_a_scan_and_its_repair_abandons_an_open_scan(team: Team) -> None:
    """An open scan does not see what the redrive of a dead letter changes."""
    team.old_orders()
    assert team("scan orders --yes")[0] == 0
    team.order("a", 600)
    team.poison()
    team.order("b", 601)
    team.drain()
    message = "tally: there are dead letters of the table shop: run `tally repair`, then scan again\n"
    assert team("check orders a") == (2, "", message)
    assert team("scan orders --again --yes") == (2, "", message)
    mark_judged(team.store, minutes_ahead=-4)  # a redrive fails if the present minute is judged
    assert "items/shop/shardId-" in team("check --only dead-letters")[1]
    assert scan_state.begin(team.store, ORDERS, now_s=1) is not None  # opens a scan
    restore_image(team)
    code, out, err = team(f"repair --only dead-letters {SIGNED}")
    assert (code, out.splitlines()[1:]) == (0, ["1 applied, 0 already gone, 0 blocked", "all is well: dead-letters"])
    assert "tally: the scan for orders was abandoned: start it again\n" in err
    assert scan_state.read_scan(team.store, "orders").closed
    assert team.numbers("orders") == team.truth("orders")


def restore_image(team: Team) -> None:
    """Give the dead letter its new image back, so that the consumer can read the record."""
    ((name, body),) = team.bucket.objects.items()
    dead_letter = json.loads(body)
    keys = dead_letter["record"]["dynamodb"]["Keys"]
    dead_letter["record"]["dynamodb"]["NewImage"] = {**keys, "status": {"S": "open"}}
    team.bucket.objects[name] = json.dumps(dead_letter).encode()


def test_after_a_dead_letter_is_dropped_the_numbers_must_be_scanned_again(team: Team) -> None:
    team.old_orders()
    assert team("scan orders --yes")[0] == 0
    team.order("a", 600)
    team.poison()
    team.bucket.objects.clear()  # --drop discards a dead letter whose object is lost
    mark_judged(team.store)
    code, out, err = team(f"repair --only dead-letters --drop {SIGNED}")
    assert (code, out.splitlines()[-1]) == (0, "all is well: dead-letters")
    assert "tally: orders has lost a change: run `tally scan orders`\n" in err
    assert team("check")[1].endswith("all is well\n")  # `check` leaves out `orders`, whose items are not counted
    assert team("get orders a")[::2] == (2, NOT_COUNTED_LINE)
    assert team("scan orders --yes")[0] == 0
    assert team.numbers("orders") == team.truth("orders")


def test_check_stores_the_drift_of_a_number_and_repair_removes_the_drift_with_author_and_reason(team: Team) -> None:
    team.old_orders()
    assert team("scan orders --yes")[0] == 0
    mark_judged(team.store)
    team.edit("a", 7)
    assert team("check")[1].endswith("all is well\n")  # `check` scans only named counters
    code, out, err = team("check orders a b")
    line, last = out.splitlines()
    assert (code, line.startswith(f"differs  orders a: {team.truth('orders')['a'] + 7}, drift +7 since ")) == (1, True)
    assert line.endswith(", confirmed: a repair adds -7")
    assert last.startswith("1 differ; to repair it: tally repair --stack Tally-dev orders a b ")
    assert f"tally: orders b: {team.truth('orders')['b']}, and its items come to {team.truth('orders')['b']}\n" in err
    assert json.loads(team("check orders --only drift --json")[1])["repair"] == -7
    team.order("a", 700)  # a change between check and repair is not drift
    team.drain()
    code, out, err = team(f"repair orders {SIGNED}")
    assert (code, out.splitlines()[-1]) == (0, "all is well")
    assert "tally: a repair removes the drift that `tally check orders` found\n" in err
    assert team.numbers("orders") == team.truth("orders")
    assert team("history a")[1].endswith("by ann (ledger): test\n")
    assert team("check orders a")[:2] == (0, "all is well\n")
    assert team(f"repair orders a {SIGNED}")[:2] == (0, "all is well\n")


def test_a_repair_deletes_the_drift_of_an_undeclared_counter_of_items(team: Team) -> None:
    """If an undeclared counter has counted changes, as `calls` has, the counter's drift stays."""
    assert team("scan orders --yes")[0] == 0
    mark_judged(team.store)
    team.edit("a", 7)
    assert team("check orders a")[0] == 1
    fingerprint = {"S": json.dumps(fingerprints.fingerprint_of(COUNTERS["usage"]))}
    item = keys.key(keys.FINGERPRINT_KEY, "calls") | {"fingerprint": fingerprint}
    team.wire.put_item(TableName=team.store.settings.ledger_table, Item=item)
    row = rows.recount_write(team.store, rows.read_row(team.store, "calls", "x"), 3, time.time())
    assert try_commit(team.store, [row])
    team.counters = {"usage": COUNTERS["usage"]}
    assert team(f"repair --only drift {SIGNED}")[0] == 0
    assert [(row.counter, row.drift) for row in rows.all_rows(team.store)] == [("calls", 3)]


def test_a_counter_counts_either_items_or_changes_for_good(team: Team) -> None:
    assert team("scan orders --yes")[0] == 0
    changes = replace(team.counters["orders"], items=None)
    with pytest.raises(
        ConfigurationError, match="counter 'orders' has counted items of 'shop', and counts changes now"
    ):
        fingerprints.check(fingerprints.read_all(team.store), {**team.counters, "orders": changes})
    fingerprint = {"S": json.dumps(fingerprints.fingerprint_of(changes))}
    item = keys.key(keys.FINGERPRINT_KEY, "spent") | {"fingerprint": fingerprint}
    team.wire.put_item(TableName=team.store.settings.ledger_table, Item=item)
    code, out, err = team("scan spent --yes")
    assert (code, out) == (2, "")
    assert "counter 'spent' has counted changes, and counts items of 'shop' now" in err


def test_check_of_all_groups_asks_continues_after_a_kill_and_finds_every_difference(
    team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while the command waits closes the scan, because an open scan costs the consumer more writes."""
    team.old_orders()
    assert team("scan orders --yes")[0] == 0
    mark_judged(team.store)
    team.edit("a", 7)
    team.edit("nobody", -2)  # a group without items
    assert team("check orders")[0] == 2  # the command asks, and nobody answers
    with pytest.raises(Crash):
        team("check orders --yes", client_that_dies(team.store.client, 2, committed=True))
    message = "tally: a recount of all groups is open: `tally check orders` continues it\n"
    assert team("check orders a") == (2, "", message)
    code, out, err = team("check orders")
    assert (code, [line.split()[2] for line in out.splitlines()[:-1]]) == (1, ["a:", "nobody:"])
    assert "tally: the scan continues: " in err
    assert team(f"repair orders {SIGNED}")[0] == 0
    assert team.numbers("orders") == team.truth("orders")
    team.stall()
    monkeypatch.setattr(scan.time, "sleep", interrupt)
    code, _, err = team("check orders a")
    assert (code, err.splitlines()[-1]) == (130, "tally: stopped")
    assert scan_state.read_scan(team.store, "orders").closed


def interrupt(_: float) -> None:
    raise KeyboardInterrupt


def test_groups_of_an_attribute_are_recounted_from_the_whole_table(team: Team) -> None:
    """A query finds the items of a group only if the group is in the partition key, as for `orders`."""
    for order in range(9):
        team.order("a", order, shop={"S": "hr desk"}, total={"N": "12.50"})
    assert team("scan spent --yes")[0] == 0
    assert team.numbers("spent") == {"hr~20desk": 9 * 1250} == team.truth("spent")
    mark_judged(team.store)
    assert team("check spent hr~20desk")[0] == 2  # the command asks, and nobody answers
    code, out, err = team("check spent hr~20desk --yes")
    assert (code, out) == (0, "all is well\n")
    assert err.startswith("tally: shop has about ")


@pytest.mark.parametrize("group", ["Cafe\u0301", "/caf%C3%A9", "a#b", ".", "~-x%y"])
def test_the_command_takes_a_group_as_the_item_spells_it(team: Team, group: str) -> None:
    """The item's spelling and the id of the group both name the number."""
    team.order("a", 1, shop={"S": group}, total={"N": "12.50"})
    assert team("scan spent --yes")[0] == 0
    ((id_, number),) = team.numbers("spent").items()
    for name in (group, id_):
        code, out, _ = team(f"get spent {name}")
        # The line ends with a random number of shards.
        assert (code, out.partition(" in ")[0].strip()) == (0, f"spent {id_}: {number}")


def test_the_last_line_of_a_scan_has_the_number_of_items_that_do_not_count_and_the_reasons(team: Team) -> None:
    for number in range(10):
        totals = {1: {"N": "12.505"}, 2: {"S": "12"}, 3: {"NS": ["1"]}}
        team.order("a", number, shop={"S": "返品と交換のお問い合わせ窓口です"}, total=totals.get(number, {"N": "1"}))
    team.order("b", 1, shop={"L": []}, total={"N": "1"})
    team.order("b", 2, shop={"BOOL": True}, total={"N": "1"})
    team.order("b", 3, total={"N": "1"})  # without a group, as with a NULL
    team.drain()
    code, out, _ = team("scan spent --yes")
    last = out.splitlines()[-1]
    assert (code, last.partition("; ")[0]) == (0, "spent is counted: 13 items read, 2 groups, 5 numbers set")
    assert "; 4 items count for nothing: " in last
    assert "1 with an amount with more decimals than `scale`, such as CUSTOMER#a, ORDER#1: total is 12.505" in last
    assert "2 with an amount that is not a number, such as CUSTOMER#a, ORDER#" in last
    assert "1 with a group that no id can be made of, such as CUSTOMER#b, ORDER#1: shop is {'L': []}" in last
    assert team.numbers("spent") == team.truth("spent")
    assert sorted(team.numbers("spent").values()) == [1, 1, 2, 100, 700]  # items of faults, shop True, seven orders
    rows_of_csv = team("export spent")[1].splitlines()
    values = sorted(line.rpartition(",")[2] for line in rows_of_csv)
    assert values == ["100", "700", "value"], "in cents, and without faults"


def test_a_corrected_item_is_not_shown_as_an_example_of_a_fault(team: Team) -> None:
    """A fault names an item as an example. After the fault, the team may correct or delete the item."""
    assert team("scan spent --yes")[0] == 0
    team.order("a", 1, shop={"S": "x"}, total={"N": "12.505"})
    team.drain()
    check = health.items_check(team.store, team.counters)
    assert check.facts["spent"]["uncounted"]["decimals"]["items"] == 1
    assert check.failed, "other counters have no scan"
    team.order("a", 1, shop={"S": "x"}, total={"N": "12.5"})
    team.drain()
    assert (team.numbers("spent"), team.bucket.objects) == ({"x": 1250}, {})
    assert "example" in team.tally_items("spent", "~-decimals")[0]
    assert list(faults.read_faults(team.store, team.counters["spent"], remove_stale=True)) == []
    assert "example" not in team.tally_items("spent", "~-decimals")[0]


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("import numbers.csv --counter orders", COUNTS_ITEMS),
        ("receipt orders a k", f"{COUNTS_ITEMS[:-1]}; --help says more"),
        ("export orders --children", "orders has no children: export the table shop"),
        ("series orders a", "orders counts items: it has no series; --help says more"),
        ("top orders", "orders counts items: it has no series; --help says more"),
        ("shadow orders numbers.csv", "orders counts items: it has no series; --help says more"),
        ("check orders --only receipts", "orders counts items, so --only must be drift; --help says more"),
        ("scan usage", "usage does not count items of your tables"),
        ("scan x", "argument COUNTER: there is no counter 'x': choose from orders, spent, usage; --help says more"),
        ("get orders a", NOT_COUNTED),
        ("watch orders a", NOT_COUNTED),
        ("export orders", NOT_COUNTED),
        ("check orders a", NOT_COUNTED),
    ],
)  # fmt: skip
def test_commands_that_do_not_apply_to_counted_items_are_refused_in_one_line(
    line: str, error: str, team: Team, port: int, dev_stack: dict[str, Any], tmp_path: Path,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    (tmp_path / "counters.py").write_text(COUNTERS_FILE)
    (tmp_path / "numbers.csv").write_text("id,value\na,1\n")
    monkeypatch.setenv("TALLY_APP", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    dev_stack["team_tables"] = {"shop": team.store.settings.team_tables["shop"]._asdict()}
    assert run_command(capsys, *line.split(), "--local", "--port", str(port)) == (2, "", f"tally: {error}\n")


def test_status_names_counters_that_are_not_counted_and_open_scans(team: Team) -> None:
    team.old_orders()

    def line() -> str:
        return next(line for line in team("status")[1].splitlines() if line[9:].startswith("items "))  # after the state

    assert team("scan spent --yes")[0] == 0
    with pytest.raises(Crash):
        team("scan orders --yes", client_that_dies(team.store.client, 3, committed=True))
    summary = "orders not counted: run `tally scan orders`, a scan is open, 120 items read; spent counted"
    assert line() == f"wrong    items         {summary}"
    part = json.loads(team("status --json")[1])["parts"]["items"]
    assert (part["orders"]["counted"], part["orders"]["scan"], part["state"]) == (False, True, "wrong")
    assert team("scan orders --yes")[0] == 0
    assert line() == "ok       items         orders counted; spent counted"


def test_a_table_that_the_stack_does_not_read_is_an_error_with_advice(team: Team) -> None:
    settings = team.store.settings._replace(team_tables={})
    for status, advice in {
        "": "create it with a stream, and start `make dev` with TALLY_TABLES=shop",
        "CREATE_COMPLETE": "pass it to the construct, tables={'shop': …}, and deploy",
    }.items():
        stack = Stack(Store(team.store.client, settings), None, team.counters, {}, status)
        with pytest.raises(scan.CommandError, match="the stack does not read the table shop: ") as raised:
            stack.team_table(ORDERS)
        assert advice in str(raised.value)


def test_a_deleted_table_is_an_error_of_one_line(team: Team) -> None:
    team.store.client.delete_table(TableName=team.table)
    code, out, err = team("scan orders --yes")
    assert (code, out, err.count("\n")) == (2, "", 1)
