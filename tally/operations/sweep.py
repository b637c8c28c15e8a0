"""The sweep. Each minute it releases expired holds, sends heartbeats, judges closed minutes, sends the events that the
bookkeeper did not send, checks team tables, reports drift, sums up series, and removes children of removed parents."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from tally import observe
from tally.api import needs
from tally.api.background import Schedule
from tally.api.needs import Need, Table
from tally.builtin import PAGE_VISITORS, is_listed
from tally.counter import Counter
from tally.counting import deletion, expired_holds, pseudonyms
from tally.drift import judge, rows
from tally.dynamo import clock
from tally.dynamo.client import Store, dynamodb_client
from tally.dynamo.shards import StreamShards
from tally.operations import CONSUMERS
from tally.series import hours
from tally.settings import Settings
from tally.streams import events, fingerprints, watermark
from tally.streams.events import Bus
from tally.streams.loss import NOTHING_LOST_S
from tally.streams.watermark import Watermark
from tally.team import faults, progress, scan_state, spot_checks, watch
from tally.team.consumer import NAME as ITEMS_CONSUMER

SCHEDULE = Schedule(
    function="sweep",
    every_min=1,
    does="judges the ledger, releases expired holds, and removes children of removed parents",
    sends_events=True,
    inspected_streams=(Table.COUNTS, Table.RECEIPTS),
)
RESERVE_S = 2.0  # the end times of parts are so long before the function's timeout, so that a begun step can end
# The share of the time left that a part of the sweep gets when it begins. Other parts have no end time.
HOLDS_SHARE = 0.5  # the first part, because nobody can buy what an expired hold has taken
JUDGE_SHARE = 0.6
EVENTS_SHARE = 0.25
TEAM_TABLES_SHARE = 0.4  # of each of three parts
REPORT_SHARE = 0.25
SERIES_SHARE = 0.5  # the last part, children of removed parents, has all that is left


def needed(counters: Iterable[Counter]) -> needs.Needs:
    """Returns the access to the tables that the sweep needs."""
    listed = list(counters)
    heartbeats = {Need("PutItem", Table.COUNTS, "HEARTBEAT#"), Need("PutItem", Table.RECEIPTS, "heartbeat#")}
    tables = (Table.RECEIPTS, Table.COUNTS)
    checkpoints = [f"CHECKPOINT#{consumer}#{table.value}" for consumer in CONSUMERS for table in tables]
    on_ledger: dict[str, Iterable[str]] = {
        "JUDGE": ("GetItem", "UpdateItem"),
        "DEADLETTER": ("Query",),
        "LOST": ("Query", "PutItem"),
        "SEGMENT#": ("Query",),
        "DRIFT": ("Query", "BatchGetItem", "UpdateItem"),
        "PROGRESS": ("GetItem", "UpdateItem"),
        "SERIES#": ("UpdateItem",),
        "RUNNING#": ("Query", "PutItem"),
        "TOP#": ("Query", "PutItem"),
        "DELETED": ("Query", "PutItem", "DeleteItem"),
        **dict.fromkeys(checkpoints, ("Query",)),
    }
    with_children = [counter for counter in listed if counter.counts_children]
    on_counts = needs.on_counts(with_children, "Query", "UpdateItem", "PutItem", "DeleteItem")
    of_items = [counter for counter in listed if counter.items is not None]
    if team_tables := {counter.items.table for counter in of_items if counter.items is not None}:
        on_ledger |= {"ITEMS": ("GetItem", "UpdateItem", "ConditionCheckItem"), "PASSED": ("GetItem", "UpdateItem")}
        on_ledger |= {"SEEN#": ("UpdateItem",), "DRIFT": ("Query", "BatchGetItem", "UpdateItem", "GetItem")}
        on_ledger |= {f"CHECKPOINT#{ITEMS_CONSUMER}#{table}": ("Query",) for table in team_tables}
    on_counts |= needs.on_counts(of_items, "Query", "UpdateItem")
    watching = [counter for counter in of_items if counter.watch]
    if watching:
        on_ledger |= {"WATCHED#": ("Query", "UpdateItem", "DeleteItem")}
        on_counts |= needs.on_counts(watching, "GetItem")
    on_salts = needs.FORGET_SALTS if is_listed(listed, PAGE_VISITORS) else needs.NOTHING
    others = needs.to_release_expired_holds(listed) | needs.to_send_events(listed, "Query") | needs.READ_FINGERPRINTS
    return others | heartbeats | needs.on_ledger(on_ledger) | on_counts | on_salts


class Sweep:
    """The Lambda function. At cold start it reads the settings and makes the client."""

    def __init__(
        self,
        counters: Mapping[str, Counter],
        store: Store | None = None,
        shards: StreamShards | None = None,
        bus: Bus | None = None,
    ) -> None:
        self.counters = counters
        self.store = store or Store(dynamodb_client(), Settings.from_environment())
        settings = self.store.settings
        self.bus = bus or Bus(settings.event_bus)
        arns = {"counts": settings.counts_stream, "receipts": settings.receipts_stream}
        self.shards = shards or StreamShards(arns | {name: own.stream for name, own in settings.team_tables.items()})

    def __call__(self, event: object, context: Any) -> dict[str, int]:
        """Runs all parts. If a part fails, runs the next parts, and raises the first failure at the end."""
        until_s = self.store.clock() + context.get_remaining_time_in_millis() / 1000 - RESERVE_S
        results: dict[str, int] = {}
        failures: list[Exception] = []
        for part in self._parts(until_s):
            try:
                results |= part() or {}
            except Exception as error:
                observe.logger.exception("part of the sweep failed")
                failures.append(error)
        observe.logger.info("swept", extra=results)
        if failures:
            raise failures[0]
        return results

    def _parts(self, until_s: float) -> Iterator[Callable[[], Mapping[str, int] | None]]:
        """Yields the parts in order. A part's share is of the time that the earlier parts left."""
        store, counters = self.store, self.counters

        def end_s(share: float) -> float:
            return until_s - (1 - share) * (until_s - store.clock())

        if any(counter.may_settle_holds for counter in counters.values()):  # otherwise the role may not read holds
            yield lambda: release_holds(store, counters, end_s(HOLDS_SHARE))
        watermark_ = watermark.read(store)
        now_s = clock.now_s()  # after `read`, because DynamoDB's answer corrects the clock
        if store.settings.salts_table:
            yield partial(pseudonyms.delete_old_salts, store, now_s)
        if not watermark_.is_too_fresh(store.settings, now_s):  # otherwise another sweep advanced the watermark
            # The judge uses the older watermark, because a checkpoint may be visible some seconds before its segments.
            yield partial(advance_watermark, store, self.shards, watermark_, now_s)
            yield lambda: judge_closed_minutes(store, watermark_, now_s, end_s(JUDGE_SHARE))
        if store.settings.event_bus:
            yield lambda: send_events(store, self.bus, now_s, end_s(EVENTS_SHARE))
        if tables := store.settings.team_tables:
            yield from (partial(note_team_table, store, self.shards, counters, name, now_s) for name in tables)
            yield lambda: spot_checks.run_spot_checks(store, counters, now_s, end_s(TEAM_TABLES_SHARE))
            yield lambda: {"watched": watch.check_numbers(store, counters, now_s, end_s(TEAM_TABLES_SHARE))}
            yield lambda: report_faults(store, counters, end_s(TEAM_TABLES_SHARE))
        yield lambda: report_drift(store, counters, watermark_, now_s, end_s(REPORT_SHARE))
        yield lambda: {"hours": hours.sum_up(store, watermark.read(store).judged, until_s=end_s(SERIES_SHARE))}
        yield lambda: sweep_removed_parents(store, counters, until_s)


def advance_watermark(store: Store, shards: StreamShards, watermark_: Watermark, now_s: float) -> dict[str, int]:
    """Sends the heartbeats, stores the watermark, and reports the lag of each consumer. Logs a long lag."""
    streams = watermark.advance(store, shards, watermark_, now_s)
    observe.write_metrics({observe.RECORDS_LOST: int(watermark_.oldest_loss_s < NOTHING_LOST_S)})
    ages_s = watermark.lags_s(streams, watermark_, now_s)
    for consumer, age_s in ages_s.items():
        observe.write_metrics({observe.WATERMARK_AGE: age_s}, consumer=consumer)
        if age_s > watermark.CONFIRM_AFTER * store.settings.minute_s:
            about = {"consumer": consumer, "age_s": age_s, "in": streams.most_lagging(consumer)}
            observe.logger.warning("consumer lags", extra=about)
    return {f"{consumer}_age_s": age_s for consumer, age_s in ages_s.items()}


def judge_closed_minutes(store: Store, watermark_: Watermark, now_s: float, until_s: float) -> dict[str, int]:
    """Judges closed minutes until `until_s`, on the store's clock, and reports how far the judge has come."""
    judged = judge.judge(store, watermark_, now_s, until_s=until_s)
    gauges = {observe.SWEEP_UNFINISHED: int(not judged.finished)}
    if judged.last >= 0:  # -1: no minute is judged. JUDGED_AGE begins with the end of the last judged minute
        gauges[observe.JUDGED_AGE] = max(0, int(now_s) - (judged.last + 1) * store.settings.minute_s)
    observe.write_metrics(gauges)
    return {
        "minutes": judged.minutes,
        "segments": judged.segments,
        "bytes": judged.bytes,
        "uneven": judged.changes,
        "finished": int(judged.finished),
    }


def report_drift(
    store: Store, counters: Mapping[str, Counter], watermark_: Watermark, now_s: float, until_s: float
) -> None:
    """Reports the drift until `until_s`, on the store's clock. Without drift, writes only DRIFT_CONFIRMED, which has an
    alarm, because CloudWatch bills each metric that has data."""
    totals, confirmed_by_counter = rows.summary(store, counters, watermark_, now_s, until_s)
    if totals[observe.DRIFTING_TALLIES]:
        observe.write_metrics(totals)
    for counter, tallies in confirmed_by_counter.items():
        observe.write_metrics({observe.DRIFT_CONFIRMED: tallies}, counter=counter)


def send_events(store: Store, bus: Bus, now_s: float, until_s: float) -> dict[str, int]:
    """Sends the events that the bookkeeper has not sent, and reports the age of the oldest event that is unsent."""
    sent = events.send_unsent(store, bus, now_s, until_s)
    observe.write_metrics({observe.OLDEST_EVENT: sent["oldest_event_s"]})
    return sent


def note_team_table(
    store: Store, shards: StreamShards, counters: Mapping[str, Counter], table: str, now_s: float
) -> None:
    """Stores how far the consumer has come in a team's table. Reports the lag, also if the stream cannot be read."""
    try:
        progress.note_progress(store, shards, counters, table, now_s)
    finally:
        if passed_s := scan_state.passed_s(store, table):  # 0: not known
            observe.write_metrics({observe.WATERMARK_AGE: int(now_s) - passed_s}, consumer=ITEMS_CONSUMER)


def report_faults(store: Store, counters: Mapping[str, Counter], until_s: float) -> dict[str, int]:
    """Reports how many items each counter cannot count, and an example of each fault. Removes outdated examples."""
    uncounted = 0
    for name, counter in counters.items():
        if counter.items is None or store.clock() >= until_s:
            continue
        found = list(faults.read_faults(store, counter, remove_stale=True))
        for fault in found:
            observe.logger.warning("items count for nothing", extra={"counter": name, **fault._asdict()})
        if found:  # CloudWatch bills each metric that has data
            observe.write_metrics({observe.UNCOUNTED: sum(fault.items for fault in found)}, counter=name)
        uncounted += sum(fault.items for fault in found)
    return {"uncounted": uncounted}


def release_holds(store: Store, counters: Mapping[str, Counter], until_s: float) -> dict[str, int]:
    """Releases expired holds, and returns how many were released, and how many could not be released."""
    swept = expired_holds.sweep(store, counters, until_s)
    return {"released": swept.released, "not_released": swept.failed, "holds_finished": int(swept.finished)}


def sweep_removed_parents(store: Store, counters: Mapping[str, Counter], until_s: float) -> dict[str, int]:
    """Removes the children of removed parents. Raises ConfigurationError if a counter's schema fingerprint has changed,
    because the sweep could then remove items of another counter."""
    fingerprints.check(fingerprints.read_all(store), counters)
    swept = deletion.sweep(store, counters, until_s)
    return {
        "children_removed": swept.children,
        "parents_removed": swept.parents,
        "parents_not_removed": swept.failed,
        "parents_finished": int(swept.finished),
    }
