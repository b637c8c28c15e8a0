"""Draws bars by the hour or day, top lists and a live number, as wide as the terminal.

Only commands that draw import this module, because the library takes a tenth of a second to load.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from datetime import datetime, tzinfo
from typing import Literal

from rich.bar import Bar
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tally.series.progress import HOUR_S

from .terminal import ComparedSpan, Point, WatchedValue, format_utc_offset

SPACE = (0, 1, 0, 0)  # one character right of each column
UP, DOWN, OPEN = "cyan", "red", "yellow"  # colours of bars; OPEN: a span that is known in part
CHANGES_MAX = 20  # how many of the last changes `draw_watch` shows; fewer on a low terminal
OTHER_LINES = 6  # lines of `draw_watch` beside the changes: title, number, state and space


def draw_series(title: str, points: Sequence[Point], zone: tzinfo, *, by_hour: bool) -> None:
    """Draws a bar for each hour or day, and labels a span that is known in part."""
    console, low = Console(highlight=False), min([0, *(point.value for point in points)])
    size = max([1, *(point.value for point in points)]) - low
    time_format = "%a %m-%d %H:%M" if by_hour else "%a %Y-%m-%d"
    if len({datetime.fromtimestamp(point.from_s, zone).utcoffset() for point in points}) > 1 and by_hour:
        time_format += " %z"  # the clocks change, so one hour appears twice
    console.print(Text(title, style="bold"))
    table = _table("left", "right", "left")
    for point in points:
        at = datetime.fromtimestamp(point.from_s, zone).strftime(time_format)
        colour = OPEN if point.part else DOWN if point.value < 0 else UP
        bar = Bar(size, min(point.value, 0) - low, max(point.value, 0) - low, color=colour)
        table.add_row(at, f"{point.value:,}", Text(point.part, style=OPEN), _bar_cell(console, bar))
    console.print(table)


def draw_comparison(title: str, spans: Sequence[ComparedSpan], zone: tzinfo) -> None:
    """Draws a row for each span between two readings, with a bar for the excess of the old number."""
    console, excesses = Console(highlight=False), [span.excess for span in spans if span.excess is not None]
    low = min([0, *excesses])
    size = max(1, *(excess - low for excess in [0, *excesses]))
    console.print(Text(title, style="bold"))
    table = _table("left", "left", "right", "right", "right")
    table.add_row("", "", *(Text(name, style="dim") for name in ("old", "Tally", "excess")), "")
    for span in spans:
        at = datetime.fromtimestamp(span.from_s, zone).strftime("%a %m-%d %H:%M %z")
        hours, excess = (span.to_s - span.from_s) // HOUR_S, span.excess
        length = Text(f"{hours} hours" if hours > 1 else "", style=OPEN)
        if excess is None:
            table.add_row(at, length, f"{span.old:,}", *[Text("unknown", style=OPEN)] * 2, "")
        else:
            bar = Bar(size, min(excess, 0) - low, max(excess, 0) - low, color=DOWN if excess else UP)
            table.add_row(at, length, f"{span.old:,}", f"{span.tally:,}", f"{excess:+,}", _bar_cell(console, bar))
    console.print(table)


def _table(*columns: Literal["left", "right"]) -> Table:
    """Returns a table of columns that are never cut, and one column for bars."""
    table = Table.grid(padding=SPACE, expand=True)
    for justify in columns:
        table.add_column(no_wrap=True, justify=justify)
    table.add_column(ratio=1)
    return table


def _bar_cell(console: Console, bar: Bar) -> RenderableType:
    """Returns the bar; empty on a terminal without block characters."""
    return "" if console.options.ascii_only else bar


def draw_top(title: str, ids_and_values: Sequence[tuple[str, int]]) -> None:
    """Draws a top list with bars. A long id takes more lines, and is never cut."""
    console = Console(highlight=False)
    console.print(Text(title, style="bold"))
    table = _table("right", "left", "right")
    table.columns[0].style = "dim"
    table.columns[1].no_wrap, table.columns[1].overflow = False, "fold"
    table.columns[1].max_width = max(16, console.width // 2)
    for place, (id_, value) in enumerate(ids_and_values, 1):
        bar = Bar(ids_and_values[0][1], 0, value, color=UP)
        table.add_row(str(place), Text(id_), f"{value:,}", _bar_cell(console, bar))
    console.print(table)


def draw_watch(title: str, interval_s: int, values_read: Iterable[WatchedValue], zone: tzinfo) -> None:
    """Draws a live number with its last changes, until the reads end."""
    console, lost_s = Console(highlight=False), 0  # `lost_s`: since when reads fail; 0: none fails
    changes: deque[WatchedValue] = deque(maxlen=CHANGES_MAX)
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        for read in values_read:
            lost_s = (lost_s or read.at_s) if read.error else 0
            if read.change:
                changes.appendleft(read)
            shown = list(changes)[: max(1, console.height - OTHER_LINES)]
            lines = [Text(f"{_clock(each.at_s, zone)}  {each.change:+,}") for each in shown]
            as_of = f"{_clock(read.at_s, zone)} ({format_utc_offset(read.at_s, zone)})"
            state = f"as of {as_of}, every {interval_s} s; Ctrl-C ends"
            if read.error:
                state = f"connection lost at {_clock(lost_s, zone)}, trying again: {read.error}"
            drawing = Group(
                Text(title, style="bold"),
                Text(f"{read.value:,}", style="dim" if read.error else f"bold {UP}"),
                *(lines or [Text("no change yet", style="dim")]),
                Text(state, style=DOWN if read.error else "dim"),
            )
            live.update(drawing, refresh=True)


def _clock(epoch_s: int, zone: tzinfo) -> str:
    return datetime.fromtimestamp(epoch_s, zone).strftime("%H:%M:%S")
