"""Events reach the bus, each at least once and under one name: whatever the bus refuses, and whoever dies.

The bus is moto's EventBridge, behind the SDK; a rule brings what it takes into a queue.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from moto import mock_aws

from tally import observe
from tally.counter import AMOUNT_MAX, Counter
from tally.counting import tallies
from tally.counting.receipts import DAY_S
from tally.dynamo.client import Store
from tally.notify import Notify
from tally.operations import sweep as sweeping
from tally.streams import events
from tally.streams.events import ENTRIES_MAX, PARTITIONS, Bus
from tests.contexts import LambdaContext
from tests.invariants.processes import Crash, WatchedClient, client_that_dies, interrupted_client
from tests.invariants.stream_records import record
from tests.invariants.streaming import LONG_TEXT, StreamWorld

pytestmark = pytest.mark.usefixtures("clock")
STOCK = Counter(
    "stock", prefix="ITEM", sort_key="STOCK", attribute="qty", max_shards=1, notify=Notify(at=tuple(range(1, 8)))
)
SUMS = Counter("sums", prefix="SUM", sort_key="N", attribute="n", delta=1, notify=Notify(every=10))
DECLARED = {one.name: one for one in (STOCK, SUMS)}
SHARD, REGION = "shard-1", "eu-west-1"


@dataclass
class Heard:
    """A bus, and who listens to it. `refuse`: the entries of each call that the bus refuses, by their places."""

    client: Any
    queue: Any
    url: str
    refuse: list[set[int]] = field(default_factory=list)
    lost: int = 0
    calls: int = 0

    def put_events(self, Entries: list[Any]) -> Any:
        """What EventBridge does: it may refuse some entries, and the answer may get lost."""
        self.calls += 1
        refused = self.refuse.pop(0) if self.refuse else set()
        taken = [entry for place, entry in enumerate(Entries) if place not in refused]
        answers = iter(self.client.put_events(Entries=taken)["Entries"] if taken else ())
        if self.lost:
            self.lost -= 1
            raise ClientError({"Error": {"Code": "InternalFailure"}}, "PutEvents")
        wrong = {"ErrorCode": "ThrottlingException", "ErrorMessage": "slow down"}
        return {"Entries": [wrong if place in refused else next(answers) for place in range(len(Entries))]}

    def names(self) -> list[str]:
        """The events that came, in any order."""
        found: list[str] = []
        while got := self.queue.receive_message(QueueUrl=self.url, MaxNumberOfMessages=10).get("Messages"):
            bodies = [json.loads(one["Body"]) for one in got]
            assert all((body["source"], body["detail-type"]) == ("tally", "Threshold crossed") for body in bodies)
            found += [body["detail"]["event"] for body in bodies]
        return found


@pytest.fixture(scope="module")
def listening() -> Iterator[Heard]:
    with mock_aws():
        client, queue = boto3.client("events"), boto3.client("sqs")
        client.create_event_bus(Name="numbers")
        once = {"VisibilityTimeout": "43200"}  # what is read comes no more, however busy this machine is
        url = queue.create_queue(QueueName="heard", Attributes=once)["QueueUrl"]
        arn = f"arn:aws:sqs:{REGION}:123456789012:heard"
        client.put_rule(Name="all", EventBusName="numbers", EventPattern=json.dumps({"source": ["tally"]}))
        client.put_targets(Rule="all", EventBusName="numbers", Targets=[{"Id": "1", "Arn": arn}])
        yield Heard(client, queue, url)


@pytest.fixture
def heard(listening: Heard) -> Heard:
    listening.names()  # those of the test before
    return replace(listening, refuse=[])


@pytest.fixture
def bus(heard: Heard) -> Bus:
    return Bus("numbers", lambda: heard)


def moved(sequence: int, old: int, new: int, id_: str = "x") -> dict[str, Any]:
    images = [{**tallies.key(STOCK, id_, 0), "qty": {"N": str(number)}} for number in (old, new)]
    images[1]["nonce"] = {"S": f"n{sequence}"}
    change = {"Keys": tallies.key(STOCK, id_, 0), "OldImage": images[0], "NewImage": images[1]}
    return record(sequence, "MODIFY", change, created_s=time.time() - 100)


def deliver(world: StreamWorld, records: list[Any], bus: Bus | None, store: Store | None = None) -> None:
    batch = world.event("counts", SHARD, records)
    world.handler("bookkeeper", store, DECLARED, bus)(batch, LambdaContext())


def unsent(world: StreamWorld) -> list[str]:
    return sorted(row["SK"]["S"].partition("#")[2] for row in world.rows("EVENT#"))


def sent(world: StreamWorld) -> list[str]:
    return sorted(row["SK"]["S"].partition("#")[2] for row in world.rows("SENT#"))


def sweep(
    world: StreamWorld, bus: Bus, store: Store | None = None, until_s: float = float("inf"), later_s: float = 0
) -> dict[str, int]:
    return events.send_unsent(store or world.store, bus, time.time() + later_s, until_s)


def test_what_the_bookkeeper_books_it_sends_once_and_keeps_for_a_while(
    stream: StreamWorld, heard: Heard, bus: Bus
) -> None:
    records = [moved(1, 0, 7), moved(2, 7, 3), moved(3, 0, 7, "y")]
    deliver(stream, records, bus)
    deliver(stream, records, bus)  # again: the checkpoint knows them
    names = heard.names()
    assert len(set(names)) == len(names) == 7 + 4 + 7
    assert (sent(stream), unsent(stream)) == (sorted(names), [])
    assert {int(row["PK"]["S"].partition("#")[2]) for row in stream.rows("SENT#")} == set(range(PARTITIONS))
    kept_s = {int(row["expiration"]["N"]) - time.time() for row in stream.rows("SENT#")}
    assert min(kept_s) > events.KEPT_S - 60
    assert sweep(stream, bus) == {"events_sent": 0, "events_refused": 0, "oldest_event_s": 0}


def test_only_events_that_the_bus_refused_are_sent_by_a_later_sweep(
    stream: StreamWorld, heard: Heard, bus: Bus
) -> None:
    heard.refuse = [{0, 3}, set(), {1}]
    deliver(stream, [moved(1, 0, 7), moved(2, 7, 0), moved(3, 0, 7)], bus)  # 21 events: ten, ten, one
    assert (len(sent(stream)), len(unsent(stream)), heard.calls) == (19, 2, 3)
    heard.refuse = [{1}]
    left = sweep(stream, bus)
    assert (left["events_sent"], left["events_refused"]) == (1, 1)
    assert left["oldest_event_s"] == 100
    assert sweep(stream, bus) == {"events_sent": 1, "events_refused": 0, "oldest_event_s": 0}
    names = heard.names()
    assert sorted(names) == sent(stream)
    assert len(names) == 21


def test_a_bus_that_is_not_there_holds_up_no_number(stream: StreamWorld, heard: Heard, bus: Bus) -> None:
    gone = Bus(f"arn:aws:events:{REGION}:123456789012:event-bus/gone", lambda: heard)
    deliver(stream, [moved(1, 0, 7)], gone)
    assert len(unsent(stream)) == 7
    assert stream.checkpoint("bookkeeper", "counts", SHARD)["sequence"] == "1"
    assert sweep(stream, gone)["events_refused"] == 7
    assert sweep(stream, bus)["events_sent"] == 7, "once it is there"
    assert sorted(heard.names()) == sent(stream)


def test_an_answer_that_is_lost_sends_the_same_names_again(stream: StreamWorld, heard: Heard, bus: Bus) -> None:
    heard.lost = 1
    deliver(stream, [moved(1, 0, 7)], bus)
    assert len(unsent(stream)) == 7, "nobody knows that they were sent"
    sweep(stream, bus)
    names = heard.names()
    assert len(names) == 14
    assert sorted(set(names)) == sent(stream)


@pytest.mark.parametrize("committed", [False, True])
def test_whoever_dies_at_any_write_leaves_every_event_to_be_sent(
    stream: StreamWorld, heard: Heard, bus: Bus, committed: bool
) -> None:
    names = set[str]()
    for at in range(9):
        records = [moved(2 * at + 1, 0, 2, f"x{at}"), summed(2 * at + 2, 10 * at + 9, 10 * at + 11)]
        stream.raw.put_item(TableName=stream.name("counts"), Item=records[1]["dynamodb"]["NewImage"])
        with suppress(Crash):
            deliver(
                stream, records, bus, stream.with_client(client_that_dies(stream.store.client, at, committed=committed))
            )
        with suppress(Crash):
            sweep(stream, bus, stream.with_client(client_that_dies(stream.store.client, at, committed=committed)))
        deliver(stream, records, bus)
        assert sweep(stream, bus, later_s=61)["oldest_event_s"] == 0
        names |= set(heard.names())
        assert names == set(sent(stream))
        assert len(names) == 3 * (at + 1), "two of the item, and one of the sum"


def summed(sequence: int, old: int, new: int) -> dict[str, Any]:
    """The record of the only shard of a sum."""
    keys = tallies.key(SUMS, "s", 0)
    images = {
        name: {**keys, "n": {"N": str(number)}, "nonce": {"S": f"n{sequence}{name}"}}
        for name, number in (("OldImage", old), ("NewImage", new))
    }
    return record(sequence, "MODIFY", {"Keys": keys, **images}, created_s=time.time() - 100)


@pytest.mark.parametrize("period", [None, "day"])
def test_the_level_of_a_period_goes_after_the_longest_one_and_any_other_stays(
    stream: StreamWorld, period: str | None
) -> None:
    one = summed(1, 9, 11)
    item = one["dynamodb"]["NewImage"]
    if period:
        for image in (item, one["dynamodb"]["OldImage"], one["dynamodb"]["Keys"]):
            image["PK"] = {"S": "SUM#s#2026-11-22"}
    stream.raw.put_item(TableName=stream.name("counts"), Item=item)
    batch = stream.event("counts", SHARD, [one])
    stream.handler("bookkeeper", declared={"sums": replace(SUMS, period=period)})(batch, LambdaContext())
    [level] = stream.rows("LEVEL#sums")
    assert ("expiration" in level) == bool(period)
    expires_s = int(level["expiration"]["N"]) if period else 10**9 * DAY_S
    assert expires_s > time.time() + (366 + 9) * 24 * 3600
    assert expires_s % DAY_S == 0, "the second of a batch says who was there"


def test_a_sum_that_stops_just_below_a_threshold_reaches_it_with_the_next_change(
    stream: StreamWorld, heard: Heard, bus: Bus
) -> None:
    for sequence, old, new in ((1, 9, 19), (2, 19, 20), (3, 20, 21)):
        one = summed(sequence, old, new)
        stream.raw.put_item(TableName=stream.name("counts"), Item=one["dynamodb"]["NewImage"])
        deliver(stream, [one], bus)
    assert len(heard.names()) == 2


def test_two_runs_that_see_a_sum_at_once_make_each_event_once(stream: StreamWorld, heard: Heard, bus: Bus) -> None:
    first, second = summed(1, 9, 31), summed(1, 9, 31)
    stream.raw.put_item(TableName=stream.name("counts"), Item=first["dynamodb"]["NewImage"])
    stream.note_form(SUMS)
    other = stream.event("counts", "shard-2", [second])

    def overtake() -> None:
        stream.handler("bookkeeper", declared=DECLARED, bus=bus)(other, LambdaContext())

    deliver(stream, [first], bus, stream.with_client(interrupted_client(stream.store.client, 0, overtake)))
    assert len(heard.names()) == len(stream.rows("SENT#")) == 3
    assert len(stream.rows("CHECKPOINT#")) == 2, "both are booked"


def test_a_batch_is_applied_though_nobody_can_note_what_was_sent(stream: StreamWorld, heard: Heard, bus: Bus) -> None:
    client = WatchedClient(stream.store.client)

    def throttle(_: int, name: str, parameters: dict[str, Any]) -> None:
        if name == "put_item":
            raise ClientError({"Error": {"Code": "ThrottlingException"}}, "PutItem")

    client.before = throttle
    batch = stream.event("counts", SHARD, [moved(1, 0, 7)])
    answer = stream.handler("bookkeeper", stream.with_client(client), DECLARED, bus)(batch, LambdaContext())
    assert answer == {"state": {}, "batchItemFailures": []}
    assert (len(heard.names()), len(unsent(stream))) == (7, 7)


def test_an_answer_that_does_not_tell_of_each_event_tells_of_none(stream: StreamWorld) -> None:
    for entries in ([], [{"EventId": "1"}], [{}] * 7):
        silent = SimpleNamespace(put_events=lambda Entries, said=entries: {"Entries": said})
        deliver(stream, [moved(1, 0, 7)], Bus("numbers", lambda client=silent: client))
        assert len(unsent(stream)) == 7


def test_the_first_write_that_names_an_event_is_that_of_the_checkpoint(stream: StreamWorld, heard: Heard) -> None:
    """Nobody hears of what is not booked."""
    client = WatchedClient(stream.store.client)

    def sending(**_: Any) -> Any:
        [(name, parameters)] = [one for one in client.sent if "EVENT#" in str(one)]
        assert name == "transact_write_items"
        assert "CHECKPOINT#bookkeeper#counts" in str(parameters)
        return {"Entries": [{"EventId": "1"}]}

    heard.client = type("Told", (), {"put_events": staticmethod(sending)})()
    deliver(stream, [moved(1, 0, 1)], Bus("numbers", lambda: heard), stream.with_client(client))
    assert heard.calls == 1


def test_a_call_of_the_largest_events_is_within_what_a_bus_takes(stream: StreamWorld, heard: Heard, bus: Bus) -> None:
    """256 KB, names of attributes included."""
    largest = replace(STOCK, notify=Notify(at=tuple(range(AMOUNT_MAX - 8, AMOUNT_MAX))))
    long = moved(1, -AMOUNT_MAX, AMOUNT_MAX, LONG_TEXT[:1017])
    batch = stream.event("counts", SHARD, [long])
    sizes: list[int] = []
    heard.client.meta.events.register(
        "before-send.events", lambda request, **_: sizes.append(len(request.body)), unique_id="sizes"
    )
    stream.handler("bookkeeper", declared={"stock": largest}, bus=bus)(batch, LambdaContext())
    assert len(heard.names()) == 8
    assert ENTRIES_MAX / 8 * max(sizes) < 64 * 1024


def test_a_record_that_cannot_be_read_has_no_events_until_it_is_redriven(
    stream: StreamWorld, heard: Heard, bus: Bus
) -> None:
    poisoned = moved(2, 7, 0)
    good = poisoned["dynamodb"]["NewImage"]["qty"]
    poisoned["dynamodb"]["NewImage"]["qty"] = {"S": "many"}
    deliver(stream, [moved(1, 0, 7), poisoned, moved(3, 0, 1)], bus)
    assert len(heard.names()) == 7 + 1
    (key,) = stream.bucket.objects
    kept = json.loads(stream.bucket.objects[key])
    kept["record"]["dynamodb"]["NewImage"]["qty"] = good  # the operator has mended it
    stream.bucket.objects[key] = json.dumps(kept).encode()
    assert stream.redrive(DECLARED) == ["applied"]
    assert sweep(stream, bus)["events_sent"] == 7
    assert len(heard.names()) == 7


def test_young_events_are_the_bookkeepers_to_send(stream: StreamWorld, heard: Heard, bus: Bus) -> None:
    young = moved(1, 0, 7)
    young["dynamodb"]["ApproximateCreationDateTime"] = time.time()
    deliver(stream, [young], None)
    left = sweep(stream, bus)
    assert left["events_sent"] == 0
    assert heard.names() == []


def test_out_of_time_the_next_sweep_goes_on(stream: StreamWorld, heard: Heard, bus: Bus) -> None:
    deliver(stream, [moved(1, 0, 7), moved(2, 7, 0)], None)
    ticks = iter([0.0, 2.0])
    hasty = replace(stream.store, clock=lambda: next(ticks))
    assert sweep(stream, bus, hasty, until_s=1.0)["events_sent"] == ENTRIES_MAX
    assert sweep(stream, bus)["events_sent"] == 4
    assert len(set(heard.names())) == 14


def test_the_newest_events_come_first_whether_they_are_sent_or_not(stream: StreamWorld, heard: Heard, bus: Bus) -> None:
    times = iter(range(100))
    records = [moved(number, 0, 2, f"x{number}") for number in range(1, 6)]
    for one in records:
        one["dynamodb"]["ApproximateCreationDateTime"] = time.time() - 1_000 + next(times)
    heard.refuse = [{0, 5}]
    deliver(stream, records, bus)
    listed = list(events.newest_events(stream.store))
    at = [event.at_ms for event, _ in listed]
    assert at == sorted(at, reverse=True)
    assert [was_sent for _, was_sent in listed].count(False) == 2
    assert {event.id for event, _ in listed} == {*sent(stream), *unsent(stream)}


def test_an_event_whose_sender_died_is_listed_once(stream: StreamWorld, heard: Heard, bus: Bus) -> None:
    """It died after it noted that the bus has the event, and before it removed what waits."""
    deliver(stream, [moved(1, 0, 2), moved(2, 0, 2, "y")], None)
    client = WatchedClient(stream.store.client)

    def die(_: int, name: str, parameters: dict[str, Any]) -> None:
        if name == "delete_item":
            raise Crash

    client.before = die
    with suppress(Crash):
        sweep(stream, bus, stream.with_client(client))
    assert set(sent(stream)) & set(unsent(stream)), "it has both"
    listed = [event.id for event, _ in events.newest_events(stream.store)]
    assert sorted(listed) == sorted({*sent(stream), *unsent(stream)})
    assert {event.id for event, was_sent in events.newest_events(stream.store) if was_sent} == set(sent(stream))


def test_who_lists_some_reads_a_page_of_each_partition_and_no_more(stream: StreamWorld) -> None:
    deliver(stream, [moved(number + 1, 0, 7, f"x{number}") for number in range(60)], None)
    asked = WatchedClient(stream.store.client, frozenset({"query"}))
    assert len(list(islice(events.newest_events(stream.with_client(asked)), 20))) == 20
    assert len(asked.sent) == 2 * PARTITIONS
    assert {parameters["Limit"] for _, parameters in asked.sent} == {events.PAGE_SIZE}
    assert len(list(events.newest_events(stream.store))) == 420, "whoever goes on gets them all"


def test_the_sweep_says_how_old_what_is_left_is(
    stream: StreamWorld, bus: Bus, capsys: pytest.CaptureFixture[str]
) -> None:
    deliver(stream, [moved(1, 0, 7)], None)
    gone = replace(bus, name=f"arn:aws:events:{REGION}:123456789012:event-bus/gone")
    sweeping._send_events(stream.store, gone, time.time(), float("inf"))
    assert f'"{observe.OLDEST_EVENT}":[1' in capsys.readouterr().out


def test_a_sum_that_cannot_be_read_holds_up_no_other_number(stream: StreamWorld, heard: Heard, bus: Bus) -> None:
    """Somebody edits one of its shards: each change of another shard reads the sum."""
    one = summed(1, 9, 11)
    stream.raw.put_item(TableName=stream.name("counts"), Item=one["dynamodb"]["NewImage"])
    stream.put({**tallies.key(SUMS, "s", 1), "n": {"S": "many"}})
    deliver(stream, [one, moved(2, 0, 1)], bus)
    assert stream.checkpoint("bookkeeper", "counts", SHARD)["sequence"] == "2"
    assert len(heard.names()) == 1
    stream.put({**tallies.key(SUMS, "s", 1), "n": {"N": "10"}})
    deliver(stream, [summed(3, 11, 12)], bus)
    assert len(heard.names()) == 2, "10 and 20, with its next change"
