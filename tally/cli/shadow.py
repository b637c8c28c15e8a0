"""The command `shadow`: compares an old counter of the same events with Tally, hour by hour.

Files give readings of the old counter: its value for an id at a time. Two readings of an id at full hours give the old
count of the hours between. Tally's series gives the accepted changes of the same hours. If the series lacks one of
these hours, Tally's count is unknown, and not 0.
"""

from __future__ import annotations

import argparse
import io
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import tzinfo
from itertools import pairwise
from typing import Any

from tally.counter import Counter
from tally.dynamo.client import Call, Store
from tally.maintenance.imports import RefusedRow
from tally.series import progress
from tally.series import read as series
from tally.series.progress import HOUR_S

from . import files, values
from .command import Command, Counters, Parser, add_counter, add_output_formats, require_series
from .connection import Stack
from .files import OldReading
from .terminal import (
    CommandError,
    ComparedSpan,
    format_clock,
    format_utc_offset,
    iso,
    may_draw,
    note,
    print_csv,
    progress_bar,
    remark,
    say,
    viewers_zone,
)

WITHIN_DEFAULT_S, WITHIN_MAX_S = 60, 1799  # below half an hour, so that a reading is near only one full hour
PRINTED_LINES_MAX = 20  # bad lines that the command prints
WORST_IDS_MAX = 5  # ids with the largest excess, which the command prints
DIFFERS, BAD_INPUT = 1, 2  # exit codes
HourlyReadings = dict[str, dict[int, OldReading]]
"""The readings of each id, by the full hour to which each is nearest, in hours since 1970."""


def _add_arguments(parser: Parser, counters: Counters) -> None:
    add_counter(parser, counters, "the counter of Tally that counts the same events")
    about = "readings of the other counter: the columns id, value and at (when it was read); - is stdin"
    parser.add_argument("files", metavar="FILE", nargs="+", help=about)
    format_text = "the format of the files (default: by their names; csv for stdin)"
    parser.add_argument("--format", choices=files.FORMATS, help=format_text)
    seconds = values.whole_number(0, WITHIN_MAX_S)
    about = f"how many seconds a reading may be away from its full hour (default: {WITHIN_DEFAULT_S})"
    parser.add_argument("--within", metavar="S", type=seconds, default=WITHIN_DEFAULT_S, help=about)
    values.add_time_zone(parser)
    add_output_formats(parser)


@dataclass
class OldReadings:
    """The readings of the files. `away`: how many are too far from a full hour; `bad`: how many rows are wrong."""

    readings: HourlyReadings = field(default_factory=dict)
    away: int = 0
    bad: int = 0

    def add(self, reading: OldReading, within_s: int) -> RefusedRow | None:
        """Keeps the reading that is nearest to its full hour. Refuses another value of the id at the same time."""
        hour = round(reading.at_s / HOUR_S)
        hours = self.readings.setdefault(reading.id, {})
        nearest = hours.get(hour)
        if abs(reading.at_s - hour * HOUR_S) > within_s:
            self.away += 1
        elif nearest is None or abs(reading.at_s - hour * HOUR_S) < abs(nearest.at_s - hour * HOUR_S):
            hours[hour] = reading
        elif nearest.at_s == reading.at_s and nearest.value != reading.value:
            return RefusedRow(reading.line, f"{reading.id} has another value at the same time")
        return None


@dataclass
class Comparison:
    """The result of a comparison. `ids`: the sums of each id (`_sums`). `away`: how many readings are too far from a
    full hour. Tally's series are complete from `since` to `as_of` (epoch seconds; None: not known)."""

    counter: str
    rows: list[ComparedSpan]
    ids: list[dict[str, Any]]
    alone: int
    """How many ids have fewer than two readings at full hours, and are in no row."""
    away: int
    added: int
    """The amount that repairs added in these hours, and that no hour of a series has."""
    since: int | None
    as_of: int | None

    def sums(self) -> dict[str, int]:
        """Returns the sums over all ids, of the hours that Tally's series has."""
        return {name: sum(one[name] for one in self.ids) for name in ("old", "tally", "excess", "over", "under")}

    def body(self) -> dict[str, Any]:
        """Returns the document that --json prints."""
        return {**asdict(self), **self.sums(), "rows": [row.body for row in self.rows]}


def print_comparison(args: argparse.Namespace, stack: Stack) -> int:
    """Prints the comparison. Returns 1 if an old number is wrong in a span, 2 if a line is bad or no row is known."""
    counter: Counter = args.counter
    if counter.period is not None:
        why = "its series has the sum of all periods: an old number cannot be compared"
        raise CommandError(f"{counter.name} has periods, and {why}")
    old_readings = _read_files(args, counter)
    if old_readings.bad:
        note(f"{files.format_rows(old_readings.bad)} cannot be read: nothing is compared")
        return BAD_INPUT
    compared = _compare(stack.store, counter, old_readings)
    zone = args.tz or viewers_zone()
    if args.json:
        say(json.dumps(compared.body()))
    elif may_draw(args):
        from . import charts  # imported late, because the import takes a tenth of a second

        name = getattr(zone, "key", None) or zone
        charts.draw_comparison(f"the old number beside {counter.name}, {name}", compared.rows, zone)
    else:
        spans = [(iso(row.from_s, zone), iso(row.to_s, zone), row) for row in compared.rows]
        lines = ([*span, row.ids, row.old, row.tally, row.excess] for *span, row in spans)
        print_csv(("from", "to", "ids", "old", "tally", "excess"), lines)
    remark(_remarks(compared, args, zone), is_drawn=may_draw(args))
    if all(row.excess is None for row in compared.rows):
        return BAD_INPUT
    return DIFFERS if any(one["over"] or one["under"] for one in compared.ids) else 0


def _read_files(args: argparse.Namespace, counter: Counter) -> OldReadings:
    """Returns the readings of the files, and prints the first lines that cannot be read. Raises CommandError."""
    old_readings = OldReadings()
    for name in args.files:
        with files.open_input(name) as file:
            text = io.TextIOWrapper(file, "utf-8-sig", errors="surrogateescape", newline="")
            try:
                file_format = files.format_of(name, args.format)
                for row in progress_bar(files.read(text, file_format, files.READINGS, counter), "row", "read"):
                    refused = row if isinstance(row, RefusedRow) else old_readings.add(row, args.within)
                    if refused is None:
                        continue
                    old_readings.bad += 1
                    if old_readings.bad <= PRINTED_LINES_MAX:
                        note(f"{name}: line {refused.line}: {refused.why}")
            except CommandError as error:
                raise CommandError(f"{name}: {error}") from None
            finally:
                text.detach()
    return old_readings


def _compare(store: Store, counter: Counter, old: OldReadings) -> Comparison:
    """Compares each span between two readings with the series. Spans of all ids with the same hours make one row."""
    since, as_of = None, progress.read(store).as_of(store.settings)  # `as_of` is read once: the same end for each id
    rows: dict[tuple[int, int], ComparedSpan] = {}
    ids, alone, added = [], 0, 0
    for id_, by_hour in progress_bar(sorted(old.readings.items()), "id", "compared"):
        spans = list(pairwise(sorted(by_hour)))
        if not spans:
            alone += 1
            continue
        all_hours = series.SeriesRange(series.HOUR, spans[0][0], spans[-1][1])
        body = series.read_series(Call(store), counter, id_, all_hours)
        since = body["since"]  # the same for each id
        last_s = (as_of or 0) - HOUR_S  # the latest start of a complete hour
        known = {one["from"] // HOUR_S: one["value"] for one in body["series"] if since <= one["from"] <= last_s}
        added += sum(repair["added"] for repair in body["repairs"])
        spans_of_id = []
        for first, end in spans:
            hours = range(first, end)
            tally = sum(known[hour] for hour in hours) if known.keys() >= set(hours) else None
            row = ComparedSpan(first * HOUR_S, end * HOUR_S, 1, by_hour[end].value - by_hour[first].value, tally)
            spans_of_id.append(row)
            span = row.from_s, row.to_s
            rows[span] = rows[span].plus(row) if span in rows else row
        ids.append({"id": id_, **_sums(spans_of_id)})
    ids.sort(key=lambda sums: (-abs(sums["excess"]), sums["under"] - sums["over"]))  # of equal ones, most errors first
    return Comparison(counter.name, [rows[span] for span in sorted(rows)], ids, alone, old.away, added, since, as_of)


def _sums(spans: Sequence[ComparedSpan]) -> dict[str, int]:
    """Returns the sums of the known spans of an id: `over` of the excesses above 0, `under` of the excesses below 0."""
    known = [(row.old, row.tally) for row in spans if row.tally is not None]
    old, tally = sum(old for old, _ in known), sum(tally for _, tally in known)
    over = sum(max(0, old - tally) for old, tally in known)
    sums = {"old": old, "tally": tally, "excess": old - tally, "over": over, "under": old - tally - over}
    return {**sums, "unknown": len(spans) - len(known)}


def _remarks(compared: Comparison, args: argparse.Namespace, zone: tzinfo) -> Iterator[str]:
    """Yields the sum, the ids with the largest excess, and what is unknown."""
    now_s, known, total = time.time(), [row for row in compared.rows if row.excess is not None], compared.sums()
    wrong = [one for one in compared.ids if one["over"] or one["under"]]
    if known and not wrong:
        yield f"the old number is right: {total['old']:,}, as Tally"
    elif known:
        share = f" ({total['excess'] / total['tally']:+.2%})" if total["tally"] else ""
        counts = f"it counted {total['old']:,}, Tally {total['tally']:,}"
        yield f"the old number's excess is {total['excess']:+,}{share}: {counts}"
        yield f"the old counter's hours have {total['over']:,} too many, and {-total['under']:,} too few"
        worst = [f"{one['id']} {one['excess']:+,}" for one in wrong[:WORST_IDS_MAX]]
        yield f"largest differences: {', '.join(worst)}"
    else:
        yield "there is nothing to compare: an id needs two readings at full hours that Tally has summed up"
    if longer := [row for row in compared.rows if row.to_s - row.from_s > HOUR_S]:
        rows = files.format_rows(len(longer))
        yield f"{rows} of several hours: without readings in between, single hours are unknown"
    if unknown := len(compared.rows) - len(known):
        yield f"{files.format_rows(unknown)} unknown: Tally has not summed up all of these hours"
    if compared.alone:
        yield f"ids in no row, because they have fewer than two readings at full hours: {compared.alone}"
    if compared.away:
        yield f"{compared.away} readings are over {args.within} s from a full hour, and are in no row"
    if compared.added:
        yield f"repairs of Tally's numbers added {compared.added:+,}, which no hour of Tally has"
    if compared.as_of is not None and compared.since is not None:
        since, until = (format_clock(at_s, zone, now_s) for at_s in (compared.since, compared.as_of))
        yield f"Tally's hours are complete from {since} up to {until} ({format_utc_offset(compared.as_of, zone)})"


SHADOW = Command(
    "shadow", print_comparison, _add_arguments,
    lambda args: require_series(args.counter),
    examples="""  tally shadow plays readings/*.csv                      a reading each hour: docs/migrate.md
  psql --csv -c 'SELECT … AS id, … AS value, … AS at' | tally shadow plays -
""",
    unknown_option_hint="a file of readings names its columns id, value and at",
)  # fmt: skip
