"""The metrics that functions print in CloudWatch's embedded metric format (EMF), read from their logs for /dev/metrics.

Source: "Specification: Embedded metric format", CloudWatch's user guide.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

PATH = "/dev/metrics"
LOOK_S = 1.0  # between two reads of the logs; a request for the metrics reads them too
LOOK_VERBOSE_S = 0.2  # a person watches the logs
READ_BYTES_MAX = 4 * 1024 * 1024  # of one log in one read
LAST_S = 60
_MARK = b'"_aws"'
Name = tuple[str, str, tuple[tuple[str, str], ...]]
"""Namespace, metric, dimensions."""

_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="5"><title>Tally's metrics</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem }}
td, th {{ text-align: left; padding: .1rem 1.5rem .1rem 0 }}
td.n, th.n {{ text-align: right; font-variant-numeric: tabular-nums }}
</style>
<h1>Metrics</h1>
<p>What the functions have reported since <code>make dev</code> started, as CloudWatch gets it.
<a href="/dev/metrics?format=json">As JSON</a>. <a href="/dev">Back</a>.</p>
<table><tr><th>Metric<th>Dimensions<th class="n">Last minute<th class="n">Sum<th class="n">Reports<th class="n">Least
<th class="n">Most<th class="n">Last</tr>
{rows}
</table>
</html>
"""


@dataclass
class Series:
    """The values of one metric with one set of dimensions."""

    unit: str
    total: float = 0
    count: int = 0
    least: float = float("inf")
    most: float = float("-inf")
    last: float = 0
    seconds: dict[int, float] = field(default_factory=dict)
    """Sums of the last minute, by second."""

    def add(self, value: float, at_s: int) -> None:
        """Add one value of the second `at_s`."""
        self.total += value
        self.count += 1
        self.least, self.most, self.last = min(self.least, value), max(self.most, value), value
        self.seconds[at_s] = self.seconds.get(at_s, 0) + value
        if len(self.seconds) > LAST_S:
            del self.seconds[min(self.seconds)]

    def last_minute(self, now_s: float) -> float:
        """The sum of the last minute's values."""
        return sum(value for at_s, value in self.seconds.items() if now_s - LAST_S <= at_s)


class Metrics:
    """Every series in the logs. `verbose` prints new lines of the logs at the terminal too."""

    def __init__(self, logs: Iterable[Path], verbose: bool = False) -> None:
        self.series: dict[Name, Series] = {}
        self._verbose = verbose
        self._offsets = {path: _size(path) for path in logs}
        self._rests = dict.fromkeys(self._offsets, b"")

    async def run(self) -> None:
        """Read new lines until cancelled."""
        while True:
            await asyncio.sleep(LOOK_VERBOSE_S if self._verbose else LOOK_S)
            self.look()

    def look(self) -> None:
        """Read the new lines of each log."""
        for path, offset in self._offsets.items():
            size = _size(path)
            if size < offset:  # a person emptied it
                self._offsets[path], self._rests[path] = 0, b""
            if size == offset:
                continue
            with contextlib.suppress(OSError), path.open("rb") as log:
                log.seek(self._offsets[path])
                read = log.read(READ_BYTES_MAX)
                self._offsets[path] += len(read)
                *lines, rest = (self._rests[path] + read).split(b"\n")
                self._rests[path] = rest[-READ_BYTES_MAX:]
                for line in lines:
                    self.take(line)
                    if self._verbose:
                        print(line.decode(errors="replace"), file=sys.stdout, flush=True)

    def take(self, line: bytes) -> None:
        """Read one line of a log. Ignore it if it has no metrics."""
        if _MARK not in line:
            return
        with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):
            document = json.loads(line)
            at_s = int(document["_aws"].get("Timestamp", time.time() * 1000)) // 1000
            for directive in document["_aws"]["CloudWatchMetrics"]:
                for names in directive.get("Dimensions") or [[]]:
                    dimensions = tuple(sorted((str(name), str(document[name])) for name in names))
                    for metric in directive["Metrics"]:
                        self._add(
                            document, (str(directive["Namespace"]), str(metric["Name"]), dimensions), metric, at_s
                        )

    def _add(self, document: Mapping[str, Any], name: Name, metric: Mapping[str, Any], at_s: int) -> None:
        values = document[name[1]]
        for value in values if isinstance(values, list) else [values]:
            self.series.setdefault(name, Series(str(metric.get("Unit", "None")))).add(float(value), at_s)

    def document(self) -> dict[str, Any]:
        """Every series as JSON. A number without a fraction is an integer."""
        now_s = time.time()
        found = [
            {
                "namespace": namespace,
                "metric": metric,
                "dimensions": dict(dimensions),
                "unit": one.unit,
                "sum": _number(one.total),
                "count": one.count,
                "min": _number(one.least),
                "max": _number(one.most),
                "last": _number(one.last),
                "last_minute": _number(one.last_minute(now_s)),
            }
            for (namespace, metric, dimensions), one in sorted(self.series.items())
        ]
        return {"metrics": found}

    def page(self) -> str:
        """Every series as an HTML page."""
        rows = []
        for entry in self.document()["metrics"]:
            dimensions = ", ".join(
                f"{name} {value}" for name, value in entry["dimensions"].items() if name != "service"
            )
            numbers = (f"{entry[name]:,}" for name in ("last_minute", "sum", "count", "min", "max", "last"))
            cells = f"<td>{escape(entry['metric'])}<td>{escape(dimensions)}"
            rows.append(f"<tr>{cells}{''.join(f'<td class=n>{number}' for number in numbers)}</tr>")
        return _PAGE.format(rows="\n".join(rows) or "<tr><td>None so far.</tr>")


def _number(value: float) -> float:
    return int(value) if float(value).is_integer() else round(value, 3)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
