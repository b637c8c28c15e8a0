"""Event source mappings of DynamoDB streams: their properties in the template, and their filters.

Source: "AWS::Lambda::EventSourceMapping", CloudFormation's reference; "Control which events Lambda sends to your
function", Lambda's developer guide. A property that this emulation lacks is an error, so that nothing runs differently
here and on AWS.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..base.errors import LocalError

FIXED: Mapping[str, Any] = {
    "BisectBatchOnFunctionError": True,
    "FunctionResponseTypes": ["ReportBatchItemFailures"],
    "MaximumRecordAgeInSeconds": -1,
    "MaximumRetryAttempts": -1,  # without end
    "ParallelizationFactor": 1,
    "StartingPosition": "TRIM_HORIZON",
}
"""What the pump does for every mapping."""
_OPTIONAL = {"MaximumRecordAgeInSeconds", "MaximumRetryAttempts", "ParallelizationFactor"}  # these are the defaults
_READ = {
    "BatchSize", "EventSourceArn", "FilterCriteria", "FunctionName", "MaximumBatchingWindowInSeconds",
    "TumblingWindowInSeconds",
}  # fmt: skip
_WITHOUT_EFFECT = {"Tags", "MetricsConfig", "KmsKeyArn", "LoggingConfig"}
Pattern = Mapping[str, Any]


@dataclass(frozen=True)
class StreamMapping:
    """A function that receives the records of a table's stream. `name`: its logical id."""

    name: str
    table: str
    function: str
    batch_records: int = 100  # Lambda's default, for streams
    batch_window_s: float = 0.0
    tumbling_window_s: int = 0
    """0: none. Then the events name no shard."""
    filters: tuple[Pattern, ...] = ()

    def takes(self, record: Mapping[str, Any]) -> bool:
        """Whether the function receives the record: one matching filter is enough."""
        return not self.filters or any(matches(pattern, record) for pattern in self.filters)


def read_mapping(id_: str, properties: Mapping[str, Any], table: str, function: str) -> StreamMapping:
    """A mapping from its properties. `table` and `function` are local names. Raises LocalError, which names `id_`."""
    for name in sorted({*properties, *FIXED} - _READ - _WITHOUT_EFFECT):
        if name not in FIXED or (properties.get(name, name in _OPTIONAL and FIXED[name]) != FIXED[name]):
            raise LocalError(
                f"the event source mapping {id_} has {name} {json.dumps(properties.get(name))},"
                " which the local run cannot emulate"
            )
    patterns = tuple(_pattern(id_, entry) for entry in properties.get("FilterCriteria", {}).get("Filters", []))
    return StreamMapping(
        name=id_,
        table=table,
        function=function,
        batch_records=int(properties.get("BatchSize", 100)),
        batch_window_s=int(properties.get("MaximumBatchingWindowInSeconds", 0)),
        tumbling_window_s=int(properties.get("TumblingWindowInSeconds", 0)),
        filters=patterns,
    )


def _pattern(id_: str, entry: Mapping[str, Any]) -> Pattern:
    try:
        pattern = json.loads(entry["Pattern"])
    except (ValueError, TypeError, KeyError):
        pattern = None
    if not _known(pattern):
        raise LocalError(
            f"the event source mapping {id_} has the filter {json.dumps(entry)[:200]}:"
            " the local run knows objects of lists of plain values and of prefixes"
        )
    return dict(pattern)


def _known(pattern: object) -> bool:
    """Whether every leaf is a list of plain values and prefixes: no `numeric`, `exists`, `suffix` and the like."""
    if not isinstance(pattern, dict) or not pattern or "$or" in pattern:
        return False
    return all(
        bool(entry) and all(map(_known_value, entry)) if isinstance(entry, list) else _known(entry)
        for entry in pattern.values()
    )


def _known_value(wanted: object) -> bool:
    if isinstance(wanted, dict):
        return wanted.keys() == {"prefix"} and isinstance(wanted["prefix"], str)
    return isinstance(wanted, str | int | float | None)


def matches(pattern: Pattern, document: object) -> bool:
    """Whether every field in the pattern has one of the values, or begins with one of the prefixes, that it lists."""
    if not isinstance(document, Mapping):
        return False
    for name, wanted in pattern.items():
        found = document.get(name)
        if isinstance(wanted, list):
            if name not in document or not any(_is(one, found) for one in wanted):
                return False
        elif not matches(wanted, found):
            return False
    return True


def _is(wanted: object, found: object) -> bool:
    """Whether a value is the wanted one, or text that begins with the wanted prefix."""
    if isinstance(wanted, Mapping):
        return isinstance(found, str) and found.startswith(wanted["prefix"])
    return type(found) is type(wanted) and found == wanted
