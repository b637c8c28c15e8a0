"""The commands `series` and `top`: a number's accepted changes by the hour or day, and the numbers that moved most.

At a terminal both draw (`charts`). Into a pipe, and with --csv, both print CSV; with --json the answer of the API.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

from tally.dynamo.client import Call
from tally.errors import InvalidInputError
from tally.series import read as reading
from tally.series import top as top_lists
from tally.series.hours import TOTAL_ID
from tally.series.progress import HOUR_S

from . import values
from .command import Command, Counters, Parser, UsageError, add_counter, add_output_formats, require_series
from .connection import Stack
from .terminal import Point, format_clock, format_utc_offset, iso, may_draw, note, print_csv, remark, say, viewers_zone

LIMIT_DEFAULT, LIMIT_MAX = 20, 500
WHOLE, PART, IMPORT, REPAIR = "whole", "part", "import", "repair"
"""The kinds of a row of CSV: the traffic of a whole hour or day, or of a part of it; the imports of a day; a repair."""


def _add_series_arguments(parser: Parser, counters: Counters) -> None:
    add_counter(parser, counters, "the counter of the number")
    of_id = "the id of a post, a video, …; for visits the page's URL (default: all of the counter together)"
    parser.add_argument("id", metavar="ID", nargs="?", help=of_id)
    by, rows = (reading.HOUR, reading.DAY), "one row for each hour or day (default: hour)"
    parser.add_argument("--by", choices=by, default=reading.HOUR, help=rows)
    start = "the start, like 2026-11-22 or 2026-11-22T10:30 (default: a day before the end, or 30 days)"
    parser.add_argument("--from", metavar="TIME", dest="since", type=values.date_time, help=start)
    end = "the end, which is not in it (default: now)"
    parser.add_argument("--to", metavar="TIME", type=values.date_time, help=end)
    values.add_time_zone(parser)
    add_output_formats(parser)


def _add_top_arguments(parser: Parser, counters: Counters) -> None:
    add_counter(parser, counters, "the counter of the numbers")
    length = "the length of the span (default: day, or as SPAN says)"
    parser.add_argument("--by", choices=tuple(top_lists.SPAN_FORMATS), help=length)
    span = "the span in UTC: 2026-11-22T13, 2026-11-22 or 2026-11 (default: the newest)"
    parser.add_argument("--span", metavar="SPAN", help=span)
    values.add_limit(parser, LIMIT_DEFAULT, LIMIT_MAX)
    add_output_formats(parser)


def _check_top_options(args: argparse.Namespace) -> None:
    """Sets `args.by` and `args.span`. Without --by, the length of the text SPAN decides. Raises UsageError."""
    require_series(args.counter)
    by_characters = {len(datetime.now(UTC).strftime(form)): by for by, form in top_lists.SPAN_FORMATS.items()}
    args.by = args.by or by_characters.get(len(args.span or ""), top_lists.DAY)
    try:
        args.span = args.span and top_lists.check_span(args.span, args.by)
    except InvalidInputError as error:
        raise UsageError(f"argument --{error.field or 'span'}: {error.detail}") from None


def _check_series_options(args: argparse.Namespace) -> None:
    """Sets `args.id`, `args.zone` and `args.range`. Raises UsageError or InvalidInputError."""
    require_series(args.counter)
    values.complete_id(args)
    # The days of unique visitors are days of the counter's time zone.
    default_zone = values.time_zone(args.counter.timezone or "UTC") if args.counter.unique else viewers_zone()
    now_s, args.zone = time.time(), args.tz or default_zone
    zone_of_days = getattr(args.zone, "key", None) if args.by == reading.DAY else None
    try:
        since, to = (values.to_epoch_seconds(when, args.zone) for when in (args.since, args.to))
        try:
            args.range = reading.range_of(args.by, since, to, zone_of_days, now_s)
        except InvalidInputError as error:
            if args.tz or error.field != "tz":
                raise
            # Tally has no sums of days in the zone of this machine, which is only a default: take days of UTC.
            args.range = reading.range_of(args.by, since, to, None, now_s)
    except InvalidInputError as error:
        raise UsageError(f"argument --{error.field or 'from'}: {error.detail}") from None
    if args.by == reading.DAY:
        args.zone = args.range.zone


def print_series(args: argparse.Namespace, stack: Stack) -> int:
    """Prints a series. Returns 2 if nothing is summed up yet."""
    body = reading.read_series(Call(stack.store), args.counter, args.id or TOTAL_ID, args.range)
    if body["as_of"] is None or args.json:
        return _print_answer(body, args)
    zone: tzinfo = args.zone
    points = list(_known_points(body, zone))
    if may_draw(args):
        from . import charts  # imported late, because the import takes a tenth of a second

        numbers = f"{body['counter']} {body['id']}" if args.id else f"all {body['counter']}"
        title = f"{numbers} by {body['by']}, {getattr(zone, 'key', None) or zone}"
        charts.draw_series(title, points, zone, by_hour=body["by"] == reading.HOUR)
        if days := body["imports"]:
            first, last = (datetime.fromtimestamp(days[end]["from"], UTC).date() for end in (0, -1))
            into = str(first) if first == last else f"{len(days)} days from {first} to {last}"
            say(f"import of {sum(day['value'] for day in days):+,} into {into} (UTC): not traffic, so not in the bars")
        for repair in body["repairs"]:
            at = format_clock(repair["at"], zone, time.time())
            why_added = "of it was accepted before the series began, or its record is lost"
            added = f"; {repair['added']:+,} {why_added}" if repair["added"] else ""
            say(f"repair of {repair['value']:+,} at {at}, by {repair['how']}: not traffic, so not in the bars{added}")
    else:
        rows = [(iso(each.from_s, zone), each.value, PART if each.part else WHOLE) for each in points]
        rows += [(iso(day["from"], UTC), day["value"], IMPORT) for day in body["imports"]]
        rows += [(iso(repair["at"], zone), repair["value"], REPAIR) for repair in body["repairs"]]
        print_csv(("from", "value", "kind"), rows)
    unit = " first visits" if args.counter.unique else ""
    remark(_series_remarks(body, points, zone, unit), is_drawn=may_draw(args))
    return 0


def print_top_list(args: argparse.Namespace, stack: Stack) -> int:
    """Prints the numbers of a counter that moved most. Returns 2 if nothing is summed up yet."""
    body = top_lists.top_list(Call(stack.store), args.counter, args.by, args.span, args.limit)
    if body["as_of"] is None or args.json:
        return _print_answer(body, args)
    ids_and_values = [(tally["id"], tally["value"]) for tally in body["top"]]
    if may_draw(args):
        from . import charts

        charts.draw_top(f"{body['counter']} that moved up most, {_span_text(body)}", ids_and_values)
    else:
        print_csv(("id", "value"), ids_and_values)
    if not body["top"]:
        exactness = f"nothing moved up: {body['counter']}, {_span_text(body)}"
    elif body["error_max"]:
        error = f"{body['error_max']:,}"
        exactness = f"a value may be wrong by up to {error}; an unlisted id may be up to {error} above the last value"
    else:
        exactness = "each value is exact"
    remark([exactness, _complete_text(body, viewers_zone())], is_drawn=may_draw(args))
    return 0


def _print_answer(body: Mapping[str, Any], args: argparse.Namespace) -> int:
    """With --json prints the answer. If nothing is summed up yet, prints a note and returns 2."""
    if args.json:
        say(json.dumps(body))
    if body["as_of"] is None:
        note("nothing is summed up yet: a new stack needs some minutes")
    return 2 if body["as_of"] is None else 0


def _known_points(body: Mapping[str, Any], zone: tzinfo) -> Iterator[Point]:
    """Yields the hours or days that lie at least in part between the start of the series (`since`) and `as_of`."""
    since, as_of = body["since"], body["as_of"]
    for point in body["series"]:
        next_day = datetime.fromtimestamp(point["from"], zone) + timedelta(days=1)  # a day may have 23 or 25 hours
        end_s = point["from"] + HOUR_S if body["by"] == reading.HOUR else next_day.timestamp()
        if point["from"] < as_of and since < end_s:
            since_text = f"since {format_clock(since, zone, since)}" if point["from"] < since else ""
            yield Point(point["from"], point["value"], "so far" if as_of < end_s else since_text)


def _series_remarks(body: Mapping[str, Any], points: Sequence[Point], zone: tzinfo, unit: str) -> Iterator[str]:
    """Yields the sum of a series, its start, and the time up to which it is complete. `unit`: what the series counts,
    with a space before it; empty: changes."""
    if points:
        numbers, times = [point.value for point in points], f"{len(points)} {body['by']}{'s' * (len(points) > 1)}"
        total = f"{sum(numbers):,}{unit} in {times}; the most in one: {max(numbers):,}"
        yield total if any(numbers) else f"nothing in {times}"
    else:
        yield "nothing is known of this time"
    if not points or points[0].from_s < body["since"]:
        yield f"series begin at {format_clock(body['since'], zone, time.time())}"
    yield _complete_text(body, zone)


def _complete_text(body: Mapping[str, Any], zone: tzinfo) -> str:
    """Returns the line with the time up to which an answer is complete."""
    return f"complete up to {format_clock(body['as_of'], zone, time.time())} ({format_utc_offset(body['as_of'], zone)})"


def _span_text(body: Mapping[str, Any]) -> str:
    """Returns the span as text, with `so far` if the span has not ended."""
    span, as_of = body["span"].replace("T", " "), datetime.fromtimestamp(body["as_of"], UTC)
    so_far = " so far" if as_of.strftime(top_lists.SPAN_FORMATS[body["by"]]) == body["span"] else ""
    return f"{span}{':00' if body['by'] == top_lists.HOUR else ''} UTC{so_far}"


SERIES = Command(
    "series", print_series, _add_series_arguments, _check_series_options,
    examples="""  tally series plays 9f3a                                the last 24 hours
  tally series likes a91f --by day --tz Europe/Berlin    the last 30 days of Berlin
  tally series visits https://example.com/ --from 2026-11-20 --to 2026-11-22T12:00
  tally series plays                                     all plays together
  tally series plays 9f3a --by day > plays.csv           CSV with from, value and kind (whole, part, import, repair)
""",
)  # fmt: skip
TOP = Command(
    "top", print_top_list, _add_top_arguments, _check_top_options,
    examples="""  tally top plays                                        today's, of UTC, so far
  tally top plays --by hour                              this hour's, so far
  tally top visits --span 2026-11 --limit 100            of a month
  tally top likes --span 2026-11-22T13 --json            of an hour
""",
)  # fmt: skip
