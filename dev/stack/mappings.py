"""Event source mappings of DynamoDB streams: their properties in the template, and their filters.

Source: "AWS::Lambda::EventSourceMapping", CloudFormation's reference; "Control which events Lambda sends to your
function", Lambda's developer guide. A property that this emulation lacks is an error, so that nothing runs differently
here and on AWS.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..base.errors import LocalError

UNLIMITED = -1
BATCH_SIZE_DEFAULT = 100  # Lambda's, for streams
BATCH_RECORDS_MAX = 10_000  # Lambda's quotas, as are the next three
BATCH_WINDOW_S_MAX = 300
TUMBLING_WINDOW_S_MAX = 900
FILTERS_MAX = 5
REPORTS_FAILURES = "ReportBatchItemFailures"
_READ = {
    "BatchSize", "BisectBatchOnFunctionError", "Enabled", "EventSourceArn", "FilterCriteria", "FunctionName",
    "FunctionResponseTypes", "MaximumBatchingWindowInSeconds", "MaximumRecordAgeInSeconds", "MaximumRetryAttempts",
    "ParallelizationFactor", "StartingPosition", "TumblingWindowInSeconds",
}  # fmt: skip
_WITHOUT_EFFECT = {"Tags", "MetricsConfig", "KmsKeyArn", "LoggingConfig"}
Pattern = Mapping[str, Any]


@dataclass(frozen=True)
class StreamMapping:
    """A function that receives the records of a table's stream."""

    name: str
    """The logical id."""
    table: str
    function: str
    batch_records: int = BATCH_SIZE_DEFAULT
    batch_window_s: float = 0.0
    tumbling_window_s: int = 0
    """0: none. Then the events name no shard."""
    bisects: bool = False
    reports_failures: bool = False
    from_latest: bool = False
    retries_max: int = UNLIMITED
    age_s_max: int = UNLIMITED
    filters: tuple[Pattern, ...] = field(default=())

    def takes(self, record: Mapping[str, Any]) -> bool:
        """Whether the function receives the record: one matching filter is enough."""
        return not self.filters or any(matches(pattern, record) for pattern in self.filters)


def read_mapping(id_: str, properties: Mapping[str, Any], table: str, function: str) -> StreamMapping:
    """A mapping from its properties. `table` and `function` are local names. Raises LocalError, which names `id_`."""
    unknown = sorted(properties.keys() - _READ - _WITHOUT_EFFECT)
    if unknown:
        raise LocalError(f"the event source mapping {id_} has {unknown[0]}, which the local run cannot emulate")
    if int(properties.get("ParallelizationFactor", 1)) != 1:
        raise LocalError(f"the event source mapping {id_} has a ParallelizationFactor: the local run knows 1 only")
    if properties.get("Enabled", True) not in (True, "true"):
        raise LocalError(f"the event source mapping {id_} is not enabled, which the local run cannot emulate")
    position = properties.get("StartingPosition")
    if position not in {"TRIM_HORIZON", "LATEST"}:
        raise LocalError(f"the event source mapping {id_} starts at {position}: TRIM_HORIZON and LATEST run here")
    kinds = list(properties.get("FunctionResponseTypes", []))
    if kinds not in ([], [REPORTS_FAILURES]):
        raise LocalError(f"the event source mapping {id_} has the response types {kinds}, which cannot run here")

    def number(name: str, default: int, lowest: int, highest: int) -> int:
        value = int(properties.get(name, default))
        if not lowest <= value <= highest:
            raise LocalError(f"the event source mapping {id_} has {name} {value}: Lambda allows {lowest} to {highest}")
        return value

    return StreamMapping(
        name=id_,
        table=table,
        function=function,
        batch_records=number("BatchSize", BATCH_SIZE_DEFAULT, 1, BATCH_RECORDS_MAX),
        batch_window_s=number("MaximumBatchingWindowInSeconds", 0, 0, BATCH_WINDOW_S_MAX),
        tumbling_window_s=number("TumblingWindowInSeconds", 0, 0, TUMBLING_WINDOW_S_MAX),
        bisects=properties.get("BisectBatchOnFunctionError", False) in (True, "true"),
        reports_failures=bool(kinds),
        from_latest=position == "LATEST",
        retries_max=number("MaximumRetryAttempts", UNLIMITED, UNLIMITED, 10_000),
        age_s_max=number("MaximumRecordAgeInSeconds", UNLIMITED, UNLIMITED, 604_800),
        filters=tuple(_patterns(id_, properties.get("FilterCriteria") or {})),
    )


def _patterns(id_: str, criteria: Mapping[str, Any]) -> list[Pattern]:
    filters = criteria.get("Filters", [])
    if len(filters) > FILTERS_MAX:
        raise LocalError(f"the event source mapping {id_} has {len(filters)} filters: Lambda takes {FILTERS_MAX}")
    found = []
    for entry in filters:
        try:
            pattern = json.loads(entry["Pattern"])
        except (ValueError, TypeError, KeyError):
            pattern = None
        if not _known(pattern):
            raise LocalError(
                f"the event source mapping {id_} has the filter {json.dumps(entry)[:200]}:"
                " the local run knows objects of lists of plain values and of prefixes"
            )
        found.append(pattern)
    return found


def _known(pattern: object) -> bool:
    """Whether every leaf is a list of plain values and prefixes: no `numeric`, `exists`, `suffix` and the like."""
    if not isinstance(pattern, dict) or not pattern:
        return False
    for entry in pattern.values():
        readable = isinstance(entry, list) and entry and all(map(_known_value, entry))
        if not readable and not _known(entry):
            return False
    return "$or" not in pattern


def _known_value(wanted: object) -> bool:
    if isinstance(wanted, dict):
        return wanted.keys() == {"prefix"} and isinstance(wanted["prefix"], str)
    return isinstance(wanted, str | int | float | None)


def matches(pattern: Pattern, document: object) -> bool:
    """Whether every field in the pattern has one of the values, or begins with one of the prefixes, that it lists."""
    if not isinstance(document, Mapping):
        return False
    for name, wanted in pattern.items():
        if name not in document:
            return False
        found = document[name]
        if isinstance(wanted, list):
            if not any(_is(one, found) for one in wanted):
                return False
        elif not matches(wanted, found):
            return False
    return True


def _is(wanted: object, found: object) -> bool:
    """Whether a value is the wanted one, or text that begins with the wanted prefix."""
    if isinstance(wanted, Mapping):
        return isinstance(found, str) and found.startswith(wanted["prefix"])
    return type(found) is type(wanted) and found == wanted
