"""The metrics that functions print in CloudWatch's embedded metric format (EMF), read from their logs for /dev/metrics.

Source: "Specification: Embedded metric format", CloudWatch's user guide.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..stack.prepared import rotate

PATH = "/dev/metrics"
READ_S = 1.0  # between two reads of the logs; a request for the metrics reads the logs, too
READ_VERBOSE_S = 0.2  # with --verbose, because a person watches the logs
READ_BYTES_MAX = 4 * 1024 * 1024  # of one log in one read
_EMF_MEMBER = b'"_aws"'
SeriesName = tuple[str, str, tuple[tuple[str, str], ...]]
"""The name of a series: namespace, metric, and the name and value of each dimension."""


@dataclass
class MetricSeries:
    """The values of one metric with one set of dimensions."""

    unit: str
    sum: float = 0
    count: int = 0
    min: float = float("inf")
    max: float = float("-inf")
    last: float = 0

    def add(self, value: float) -> None:
        self.sum += value
        self.count += 1
        self.min, self.max, self.last = min(self.min, value), max(self.max, value), value


class Metrics:
    """Every series in the logs. `verbose` prints new lines of the logs at the terminal too."""

    def __init__(self, verbose: bool = False) -> None:
        self.series: dict[SeriesName, MetricSeries] = {}
        self._verbose = verbose
        self._offsets: dict[Path, int] = {}  # how many bytes of each log are read
        self._rests: dict[Path, bytes] = {}  # the last line of each log, if its end is not written

    def follow(self, logs: Path, functions: Iterable[str]) -> None:
        """Read what these functions log from now on, each in a file of the folder `logs`. First rename large files."""
        for path in (logs / f"{name}.log" for name in functions):
            if path not in self._offsets:
                rotate(path)
                self._offsets[path], self._rests[path] = _size(path), b""

    async def run(self) -> None:
        """Read new lines until cancelled."""
        while True:
            await asyncio.sleep(READ_VERBOSE_S if self._verbose else READ_S)
            self.read_new_lines()

    def read_new_lines(self) -> None:
        for path, offset in self._offsets.items():
            size = _size(path)
            if size < offset:  # a person emptied the log
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
                    self.add_line(line)
                    if self._verbose:
                        print(line.decode(errors="replace"), file=sys.stdout, flush=True)

    def add_line(self, line: bytes) -> None:
        """Read one line of a log. Ignore a line without metrics."""
        if _EMF_MEMBER not in line:
            return
        with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):
            document = json.loads(line)
            for directive in document["_aws"]["CloudWatchMetrics"]:
                for names in directive.get("Dimensions") or [[]]:
                    dimensions = tuple(sorted((str(name), str(document[name])) for name in names))
                    for metric in directive["Metrics"]:
                        series_name = (str(directive["Namespace"]), str(metric["Name"]), dimensions)
                        values = document[str(metric["Name"])]
                        new = MetricSeries(str(metric.get("Unit", "None")))
                        for value in values if isinstance(values, list) else [values]:
                            self.series.setdefault(series_name, new).add(float(value))

    def document(self) -> dict[str, Any]:
        """Every series as JSON. A number without a fraction is an integer."""
        documents = [
            {
                "namespace": namespace,
                "metric": metric,
                "dimensions": dict(dimensions),
                **{
                    name: one if isinstance(one, str) else int(one) if float(one).is_integer() else round(one, 3)
                    for name, one in vars(series).items()
                },
            }
            for (namespace, metric, dimensions), series in sorted(self.series.items())
        ]
        return {"metrics": documents}


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
