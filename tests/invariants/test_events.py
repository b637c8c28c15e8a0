"""Each event of a threshold crossing reaches the bus at least once, always with the same id, though the bus refuses
entries and processes die. The bus is moto's EventBridge, called by the real SDK. A rule puts each event that the bus
accepts into a queue."""

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

from tally import fields, observe
from tally.counter import AMOUNT_MAX, Counter
from tally.counting import tallies
from tally.counting.receipts import DAY_S
from tally.dynamo.client import Store
from tally.notify import Notify
from tally.operations import sweep as sweeping
from tally.streams import events, levels
from tally.streams.events import ENTRIES_MAX, PARTITIONS, Bus
from tests.contexts import LambdaContext
from tests.invariants.processes import Crash, WatchedClient, client_that_dies, interrupted_client
from tests.invariants.stream_records import record
from tests.invariants.streaming import LONG_TEXT, StreamWorld

pytestmark = pytest.mark.usefixtures("clock")
STOCK = Counter(
    "stock", prefix="ITEM", sort_key="STOCK", attribute="qty", max_shards=1, notify=Notify(at=tuple(range(1, 8)))
)
# STOCK is one item, so its records show the number. SHARDED is the sum of several items. No record shows the sum, so
# the bookkeeper reads it after each change. `delta`: each change adds 1, because Tally does not see such a sum go down.
SHARDED = Counter("sharded", prefix="SUM", sort_key="N", attribute="n", delta=1, notify=Notify(every=10))
DECLARED = {counter.name: counter for counter in (STOCK, SHARDED)}
SHARD, REGION = "shard-1", "eu-west-1"
AGE_S = 100  # the age of the records, because a sweep leaves events of the last minute to the bookkeeper


@dataclass
class RecordedBus:
    """A bus, and a queue that gets the bus's events. `refuse`: for each of the next calls, which entries are refused.
    `lost_answers`: how many of the next answers are lost. `calls`: how many calls the bus got."""

    client: Any
    queue: Any
    url: str
    refuse: list[set[int]] = field(default_factory=list)
    lost_answers: int = 0
    calls: int = 0

    def put_events(self, Entries: list[Any]) -> Any:
        """Do as EventBridge does: refuse some entries, accept the others, and perhaps lose the answer."""
        self.calls += 1
        refused = self.refuse.pop(0) if self.refuse else set()
        accepted = [entry for index, entry in enumerate(Entries) if index not in refused]
        answers = iter(self.client.put_events(Entries=accepted)["Entries"] if accepted else ())
        if self.lost_answers:
            self.lost_answers -= 1
            raise ClientError({"Error": {"Code": "InternalFailure"}}, "PutEvents")
        refusal = {"ErrorCode": "ThrottlingException", "ErrorMessage": "slow down"}
        return {"Entries": [refusal if index in refused else next(answers) for index in range(len(Entries))]}

    def received(self) -> list[str]:
        """Returns the ids of the events that came since the last call, in any order."""
        ids: list[str] = []
        while messages := self.queue.receive_message(QueueUrl=self.url, MaxNumberOfMessages=10).get("Messages"):
            bodies = [json.loads(message["Body"]) for message in messages]
            assert all((body["source"], body["detail-type"]) == ("tally", "Threshold crossed") for body in bodies)
            ids += [body["detail"]["event"] for body in bodies]
        return ids


@pytest.fixture(scope="module")
def bus_of_module() -> Iterator[RecordedBus]:
    with mock_aws():
        client, queue = boto3.client("events"), boto3.client("sqs")
        client.create_event_bus(Name="numbers")
        # Nobody deletes a message. A received message stays hidden for 12 hours, so each is received once.
        received_once = {"VisibilityTimeout": "43200"}
        url = queue.create_queue(QueueName="received", Attributes=received_once)["QueueUrl"]
        arn = f"arn:aws:sqs:{REGION}:123456789012:received"
        client.put_rule(Name="all", EventBusName="numbers", EventPattern=json.dumps({"source": ["tally"]}))
        client.put_targets(Rule="all", EventBusName="numbers", Targets=[{"Id": "1", "Arn": arn}])
        yield RecordedBus(client, queue, url)


@pytest.fixture
def recorded_bus(bus_of_module: RecordedBus) -> RecordedBus:
    bus_of_module.received()  # drop the events of an earlier test
    return replace(bus_of_module, refuse=[])


@pytest.fixture
def bus(recorded_bus: RecordedBus) -> Bus:
    return Bus("numbers", lambda: recorded_bus)


def stock_record(sequence: int, old: int, new: int, id_: str = "x") -> dict[str, Any]:
    """Makes the record of a change of the stock from `old` to `new`, made AGE_S ago."""
    images = [{**tallies.key(STOCK, id_, 0), "qty": {"N": str(number)}} for number in (old, new)]
    images[1]["nonce"] = {"S": f"n{sequence}"}
    change = {"Keys": tallies.key(STOCK, id_, 0), "OldImage": images[0], "NewImage": images[1]}
    return record(sequence, "MODIFY", change, created_s=time.time() - AGE_S)


def deliver(world: StreamWorld, records: list[Any], bus: Bus | None, store: Store | None = None) -> None:
    """Delivers a batch to the bookkeeper. `bus`: gets the events; None: the bookkeeper leaves them to the sweep."""
    batch = world.event("counts", SHARD, records)
    world.handler("bookkeeper", store, DECLARED, bus)(batch, LambdaContext())


def unsent_events(world: StreamWorld) -> list[str]:
    return sorted(row["SK"]["S"].partition("#")[2] for row in world.rows("EVENT#"))


def sent_events(world: StreamWorld) -> list[str]:
    return sorted(row["SK"]["S"].partition("#")[2] for row in world.rows("SENT#"))


def sweep(
    world: StreamWorld, bus: Bus, store: Store | None = None, until_s: float = float("inf"), later_s: float = 0
) -> dict[str, int]:
    """Sends the unsent events, as the sweep does `later_s` from now. `until_s`, on the store's clock: when to stop.
    Returns what the sweep logs of the events."""
    return events.send_unsent(store or world.store, bus, time.time() + later_s, until_s)


def test_the_bookkeeper_sends_each_event_once_and_stores_for_some_days_that_the_event_was_sent(
    stream: StreamWorld, recorded_bus: RecordedBus, bus: Bus
) -> None:
    records = [stock_record(1, 0, 7), stock_record(2, 7, 3), stock_record(3, 0, 7, "y")]
    deliver(stream, records, bus)
    deliver(stream, records, bus)  # the checkpoint skips the repeated records
    ids = recorded_bus.received()
    assert len(set(ids)) == len(ids) == 7 + 4 + 7, "the thresholds between 0 and 7, 7 and 3, 0 and 7"
    assert (sent_events(stream), unsent_events(stream)) == (sorted(ids), [])
    assert {int(row["PK"]["S"].partition("#")[2]) for row in stream.rows("SENT#")} == set(range(PARTITIONS))
    lifetimes_s = {int(row["expiration"]["N"]) - time.time() for row in stream.rows("SENT#")}
    assert min(lifetimes_s) > events.KEPT_S - 60
    assert sweep(stream, bus) == {"events_sent": 0, "events_refused": 0, "oldest_event_s": 0}


def test_only_events_that_the_bus_refused_are_sent_by_a_later_sweep(
    stream: StreamWorld, recorded_bus: RecordedBus, bus: Bus
) -> None:
    recorded_bus.refuse = [{0, 3}]  # in the first of three calls, which have ten, ten and one of the 21 events
    deliver(stream, [stock_record(1, 0, 7), stock_record(2, 7, 0), stock_record(3, 0, 7)], bus)
    assert (len(sent_events(stream)), len(unsent_events(stream)), recorded_bus.calls) == (19, 2, 3)
    recorded_bus.refuse = [{1}]
    assert sweep(stream, bus) == {"events_sent": 1, "events_refused": 1, "oldest_event_s": AGE_S}
    assert sweep(stream, bus) == {"events_sent": 1, "events_refused": 0, "oldest_event_s": 0}
    ids = recorded_bus.received()
    assert sorted(ids) == sent_events(stream)
    assert len(ids) == 21


def test_the_bookkeeper_books_changes_while_the_bus_does_not_exist(
    stream: StreamWorld, recorded_bus: RecordedBus, bus: Bus
) -> None:
    missing_bus = Bus(f"arn:aws:events:{REGION}:123456789012:event-bus/gone", lambda: recorded_bus)
    deliver(stream, [stock_record(1, 0, 7)], missing_bus)
    assert len(unsent_events(stream)) == 7
    assert stream.checkpoint("bookkeeper", "counts", SHARD)["sequence"] == "1"
    assert sweep(stream, missing_bus)["events_refused"] == 7
    assert sweep(stream, bus)["events_sent"] == 7, "after the bus was created"
    assert sorted(recorded_bus.received()) == sent_events(stream)


def test_events_whose_answer_is_lost_are_sent_a_second_time_under_the_same_names(
    stream: StreamWorld, recorded_bus: RecordedBus, bus: Bus
) -> None:
    recorded_bus.lost_answers = 1
    deliver(stream, [stock_record(1, 0, 7)], bus)
    assert len(unsent_events(stream)) == 7, "nobody knows that the bus has the events"
    sweep(stream, bus)
    ids = recorded_bus.received()
    assert len(ids) == 14
    assert sorted(set(ids)) == sent_events(stream)


@pytest.mark.parametrize("committed", [False, True])
def test_every_event_is_sent_though_the_bookkeeper_and_the_sweep_die_at_any_write(
    stream: StreamWorld, recorded_bus: RecordedBus, bus: Bus, committed: bool
) -> None:
    ids = set[str]()
    for turn in range(9):
        sharded_change = sharded_record(2 * turn + 2, 10 * turn + 9, 10 * turn + 11)
        records = [stock_record(2 * turn + 1, 0, 2, f"x{turn}"), sharded_change]
        stream.raw.put_item(TableName=stream.name("counts"), Item=sharded_change["dynamodb"]["NewImage"])
        bookkeeper, sweeper = (client_that_dies(stream.store.client, turn, committed=committed) for _ in range(2))
        with suppress(Crash):
            deliver(stream, records, bus, stream.with_client(bookkeeper))
        with suppress(Crash):
            sweep(stream, bus, stream.with_client(sweeper))
        deliver(stream, records, bus)
        # The bookkeeper reads the sum of SHARDED, so the event has the present time, not the time of the record. For a
        # minute, sweeps leave the event to the bookkeeper.
        assert sweep(stream, bus, later_s=61)["oldest_event_s"] == 0
        ids |= set(recorded_bus.received())
        assert ids == set(sent_events(stream))
        assert len(ids) == 3 * (turn + 1), "two events of STOCK, and one of SHARDED"


def sharded_record(sequence: int, old: int, new: int) -> dict[str, Any]:
    """Makes the record of a change of SHARDED's only stored shard, made AGE_S ago."""
    keys = tallies.key(SHARDED, "s", 0)
    images = {
        name: {**keys, "n": {"N": str(number)}, "nonce": {"S": f"n{sequence}{name}"}}
        for name, number in (("OldImage", old), ("NewImage", new))
    }
    return record(sequence, "MODIFY", {"Keys": keys, **images}, created_s=time.time() - AGE_S)


@pytest.mark.parametrize("period", [None, "day"])
def test_a_level_expires_after_a_year_only_if_its_counter_has_periods(stream: StreamWorld, period: str | None) -> None:
    change = sharded_record(1, 9, 11)
    item = change["dynamodb"]["NewImage"]
    if period:
        for image in (item, change["dynamodb"]["OldImage"], change["dynamodb"]["Keys"]):
            image["PK"] = {"S": "SUM#s#2026-11-22"}
    stream.raw.put_item(TableName=stream.name("counts"), Item=item)
    batch = stream.event("counts", SHARD, [change])
    stream.handler("bookkeeper", declared={"sharded": replace(SHARDED, period=period)})(batch, LambdaContext())
    [level] = stream.rows("LEVEL#sharded")
    assert ("expiration" in level) == bool(period)
    if period:
        expires_s = int(level["expiration"]["N"])
        assert expires_s >= time.time() + levels.LEVEL_KEPT_S
        assert expires_s % DAY_S == 0, "an exact time would reveal when the number reached the threshold"


def test_a_sum_that_stops_just_below_a_threshold_crosses_the_threshold_with_the_next_change(
    stream: StreamWorld, recorded_bus: RecordedBus, bus: Bus
) -> None:
    for sequence, old, new in ((1, 9, 19), (2, 19, 20), (3, 20, 21)):
        change = sharded_record(sequence, old, new)
        stream.raw.put_item(TableName=stream.name("counts"), Item=change["dynamodb"]["NewImage"])
        deliver(stream, [change], bus)
    assert len(recorded_bus.received()) == 2, "the thresholds 10 and 20"


def test_two_batches_that_read_a_sum_at_once_make_each_event_once(
    stream: StreamWorld, recorded_bus: RecordedBus, bus: Bus
) -> None:
    first, second = sharded_record(1, 9, 31), sharded_record(1, 9, 31)
    stream.raw.put_item(TableName=stream.name("counts"), Item=first["dynamodb"]["NewImage"])
    stream.note_fingerprint(SHARDED)  # otherwise the first write of a batch stores the fingerprint of this new counter
    other_batch = stream.event("counts", "shard-2", [second])

    def overtake() -> None:
        stream.handler("bookkeeper", declared=DECLARED, bus=bus)(other_batch, LambdaContext())

    deliver(stream, [first], bus, stream.with_client(interrupted_client(stream.store.client, 0, overtake)))
    assert len(recorded_bus.received()) == len(stream.rows("SENT#")) == 3, "the thresholds 10, 20 and 30"
    assert len(stream.rows("CHECKPOINT#")) == 2, "both batches are booked"


def test_a_batch_is_applied_though_the_bookkeeper_cannot_store_which_events_it_sent(
    stream: StreamWorld, recorded_bus: RecordedBus, bus: Bus
) -> None:
    client = WatchedClient(stream.store.client)

    def throttle(_: int, name: str, parameters: dict[str, Any]) -> None:
        if name == "put_item":  # the write that stores an event as sent
            raise ClientError({"Error": {"Code": "ThrottlingException"}}, "PutItem")

    client.before = throttle
    batch = stream.event("counts", SHARD, [stock_record(1, 0, 7)])
    answer = stream.handler("bookkeeper", stream.with_client(client), DECLARED, bus)(batch, LambdaContext())
    assert answer == {"state": {}, "batchItemFailures": []}
    assert (len(recorded_bus.received()), len(unsent_events(stream))) == (7, 7)


def test_an_answer_that_does_not_confirm_each_event_leaves_every_event_unsent(stream: StreamWorld) -> None:
    for number, results in enumerate(([], [{"EventId": "1"}], [{}] * 7), 1):
        client = SimpleNamespace(put_events=lambda Entries, results=results: {"Entries": results})
        deliver(stream, [stock_record(number, 0, 7)], Bus("numbers", lambda client=client: client))
        assert len(unsent_events(stream)) == 7 * number


def test_an_event_is_stored_with_the_checkpoint_and_sent_afterwards(
    stream: StreamWorld, recorded_bus: RecordedBus
) -> None:
    """The bus never gets an event of a change that is not booked."""
    client = WatchedClient(stream.store.client)

    def assert_stored(**_: Any) -> Any:
        [(name, parameters)] = [write for write in client.calls if "EVENT#" in str(write)]
        assert name == "transact_write_items"
        assert "CHECKPOINT#bookkeeper#counts" in str(parameters)
        return {"Entries": [{"EventId": "1"}]}

    recorded_bus.client = SimpleNamespace(put_events=assert_stored)
    deliver(stream, [stock_record(1, 0, 1)], Bus("numbers", lambda: recorded_bus), stream.with_client(client))
    assert recorded_bus.calls == 1


def test_a_call_of_the_largest_events_is_small_enough_for_the_bus(
    stream: StreamWorld, recorded_bus: RecordedBus, bus: Bus
) -> None:
    """With ENTRIES_MAX such events, a call has at most a quarter of the 256 KB that EventBridge accepts."""
    largest = replace(STOCK, notify=Notify(at=tuple(range(AMOUNT_MAX - 8, AMOUNT_MAX))))
    longest_id = LONG_TEXT[: fields.CANONICAL_URL_BYTES_MAX]  # no id is longer than that of a page
    batch = stream.event("counts", SHARD, [stock_record(1, -AMOUNT_MAX, AMOUNT_MAX, longest_id)])
    sizes: list[int] = []
    recorded_bus.client.meta.events.register(
        "before-send.events", lambda request, **_: sizes.append(len(request.body)), unique_id="sizes"
    )
    stream.handler("bookkeeper", declared={"stock": largest}, bus=bus)(batch, LambdaContext())
    assert len(recorded_bus.received()) == 8
    assert ENTRIES_MAX / 8 * max(sizes) < 64 * 1024  # this call has 8


def test_a_record_that_cannot_be_read_has_no_events_until_it_is_redriven(
    stream: StreamWorld, recorded_bus: RecordedBus, bus: Bus
) -> None:
    poison = stock_record(2, 7, 0)
    right_number = poison["dynamodb"]["NewImage"]["qty"]
    poison["dynamodb"]["NewImage"]["qty"] = {"S": "many"}
    deliver(stream, [stock_record(1, 0, 7), poison, stock_record(3, 0, 1)], bus)
    assert len(recorded_bus.received()) == 7 + 1, "the thresholds of the first and of the third record"
    (key,) = stream.bucket.objects
    dead_letter = json.loads(stream.bucket.objects[key])
    dead_letter["record"]["dynamodb"]["NewImage"]["qty"] = right_number  # as an operator corrects the record
    stream.bucket.objects[key] = json.dumps(dead_letter).encode()
    assert stream.redrive(DECLARED) == ["applied"]
    assert sweep(stream, bus)["events_sent"] == 7
    assert len(recorded_bus.received()) == 7


def test_the_sweep_leaves_young_events_to_the_bookkeeper(
    stream: StreamWorld, recorded_bus: RecordedBus, bus: Bus
) -> None:
    young = stock_record(1, 0, 7)
    young["dynamodb"]["ApproximateCreationDateTime"] = time.time()
    deliver(stream, [young], None)
    assert sweep(stream, bus)["events_sent"] == 0
    assert recorded_bus.received() == []


def test_a_sweep_out_of_time_leaves_the_other_events_to_the_next_sweep(
    stream: StreamWorld, recorded_bus: RecordedBus, bus: Bus
) -> None:
    deliver(stream, [stock_record(1, 0, 7), stock_record(2, 7, 0)], None)
    ticks = iter([0.0, 2.0])  # the times before the first and the second call of the bus
    short_of_time = replace(stream.store, clock=lambda: next(ticks))
    assert sweep(stream, bus, short_of_time, until_s=1.0)["events_sent"] == ENTRIES_MAX
    assert sweep(stream, bus)["events_sent"] == 4
    assert len(set(recorded_bus.received())) == 14


def test_the_newest_events_are_listed_first_whether_they_are_sent_or_not(
    stream: StreamWorld, recorded_bus: RecordedBus, bus: Bus
) -> None:
    records = [stock_record(number, 0, 2, f"x{number}") for number in range(1, 6)]
    for number, change in enumerate(records):
        change["dynamodb"]["ApproximateCreationDateTime"] = time.time() - 1_000 + number
    recorded_bus.refuse = [{0, 5}]
    deliver(stream, records, bus)
    newest_events = list(events.newest_events(stream.store))
    times_ms = [event.at_ms for event, _ in newest_events]
    assert times_ms == sorted(times_ms, reverse=True)
    assert [is_sent for _, is_sent in newest_events].count(False) == 2
    assert {event.id for event, _ in newest_events} == {*sent_events(stream), *unsent_events(stream)}


def test_an_event_whose_sender_died_is_listed_once(stream: StreamWorld, recorded_bus: RecordedBus, bus: Bus) -> None:
    """The sender died after it stored the event as sent, and before it deleted the event as unsent."""
    deliver(stream, [stock_record(1, 0, 2), stock_record(2, 0, 2, "y")], None)
    client = WatchedClient(stream.store.client)

    def die(_: int, name: str, parameters: dict[str, Any]) -> None:
        if name == "delete_item":
            raise Crash

    client.before = die
    with suppress(Crash):
        sweep(stream, bus, stream.with_client(client))
    assert set(sent_events(stream)) & set(unsent_events(stream)), "the event is stored as sent and as unsent"
    event_ids = [event.id for event, _ in events.newest_events(stream.store)]
    assert sorted(event_ids) == sorted({*sent_events(stream), *unsent_events(stream)})
    assert {event.id for event, is_sent in events.newest_events(stream.store) if is_sent} == set(sent_events(stream))


def test_a_list_of_the_20_newest_events_reads_one_page_of_each_partition(stream: StreamWorld) -> None:
    deliver(stream, [stock_record(number + 1, 0, 7, f"x{number}") for number in range(60)], None)
    client = WatchedClient(stream.store.client, frozenset({"query"}))
    assert len(list(islice(events.newest_events(stream.with_client(client)), 20))) == 20
    assert len(client.calls) == 2 * PARTITIONS, "a page of sent and a page of unsent events"
    assert {parameters["Limit"] for _, parameters in client.calls} == {events.PAGE_SIZE}
    assert len(list(events.newest_events(stream.store))) == 60 * 7, "the iterator yields every event"


def test_the_sweep_writes_the_age_of_the_oldest_unsent_event_as_a_metric(
    stream: StreamWorld, bus: Bus, capsys: pytest.CaptureFixture[str]
) -> None:
    deliver(stream, [stock_record(1, 0, 7)], None)
    missing_bus = replace(bus, name=f"arn:aws:events:{REGION}:123456789012:event-bus/gone")
    sweeping.send_events(stream.store, missing_bus, time.time(), float("inf"))
    assert f'"{observe.OLDEST_EVENT}":[{AGE_S}' in capsys.readouterr().out


def test_a_sum_that_cannot_be_read_does_not_delay_another_number(
    stream: StreamWorld, recorded_bus: RecordedBus, bus: Bus
) -> None:
    """A shard of the sum has text in place of a number. A change of any shard reads the whole sum."""
    change = sharded_record(1, 9, 11)
    stream.raw.put_item(TableName=stream.name("counts"), Item=change["dynamodb"]["NewImage"])
    stream.put({**tallies.key(SHARDED, "s", 1), "n": {"S": "many"}})
    deliver(stream, [change, stock_record(2, 0, 1)], bus)
    assert stream.checkpoint("bookkeeper", "counts", SHARD)["sequence"] == "2"
    assert len(recorded_bus.received()) == 1
    stream.put({**tallies.key(SHARDED, "s", 1), "n": {"N": "10"}})
    deliver(stream, [sharded_record(3, 11, 12)], bus)
    assert len(recorded_bus.received()) == 2, "the next change of SHARDED sends the events of the thresholds 10 and 20"
