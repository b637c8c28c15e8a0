"""Event source mappings of DynamoDB streams: what the pump does for each, and their filters.

Source: "AWS::Lambda::EventSourceMapping", CloudFormation's reference; "Control which events Lambda sends to your
function", Lambda's developer guide. What the pump lacks is an error, so that nothing runs differently here and on AWS.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from tally.contract.stream_views import KeysByCounter

from ..base.errors import LocalError

FIXED: Mapping[str, Any] = {
    "bisects": True,
    "reports_failures": True,
    "parallel": 1,
    "retries": -1,  # without end
    "age_s": -1,
    "begins": "TRIM_HORIZON",
}
"""What the pump does for every mapping."""
FilterPattern = Mapping[str, Any]


@dataclass(frozen=True)
class StreamMapping:
    """A function that receives the records of a table's stream."""

    name: str
    table: str
    function: str
    batch_records: int = 100  # Lambda's default, for streams
    batch_window_s: float = 0.0
    tumbling_window_s: int = 0
    """0: none. Then the events name no shard."""
    filters: tuple[FilterPattern, ...] = ()
    counters: KeysByCounter | None = None
    """Of a person's own table: what counts its items. None: the table is one of Tally's."""
    stream: str = ""
    """Of a person's own table: the ARN of its stream as it is now. The table may be made again."""

    def takes(self, record: Mapping[str, Any]) -> bool:
        """Whether the function receives the record: one matching filter is enough."""
        return not self.filters or any(matches(pattern, record) for pattern in self.filters)

    def scaled_to(self, minute_s: int) -> StreamMapping:
        """Returns the mapping with a window that is as much of a minute here as on AWS. One of a second stays."""
        window_s = min(self.batch_window_s, max(1.0, self.batch_window_s * minute_s / 60))
        return replace(self, batch_window_s=window_s)


def read_mapping(mapping: Mapping[str, Any]) -> StreamMapping:
    """A mapping that `described` describes. Raises LocalError, which names it, for what the pump cannot do."""
    own = {one.name for one in fields(StreamMapping)}
    for name in sorted({*mapping, *FIXED} - own):
        if name not in FIXED or mapping.get(name) != FIXED[name]:
            value = json.dumps(mapping.get(name))
            raise LocalError(f"the mapping {mapping['name']} has {name} {value}, which the local run cannot emulate")
    for pattern in mapping["filters"]:
        if not _known(pattern):
            raise LocalError(
                f"the mapping {mapping['name']} has the filter {json.dumps(pattern)[:200]}:"
                " the local run knows objects of lists of plain values and of prefixes"
            )
    return StreamMapping(
        **{name: one for name, one in mapping.items() if name in own} | {"filters": tuple(mapping["filters"])}
    )


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


def matches(pattern: FilterPattern, document: object) -> bool:
    """Whether every field in the pattern has one of the values, or begins with one of the prefixes, that it lists."""
    if not isinstance(document, Mapping):
        return False
    for name, wanted in pattern.items():
        value = document.get(name)
        if isinstance(wanted, list):
            if name not in document or not any(_matches_value(one, value) for one in wanted):
                return False
        elif not matches(wanted, value):
            return False
    return True


def _matches_value(wanted: object, value: object) -> bool:
    """Whether a value is the wanted one, or text that begins with the wanted prefix."""
    if isinstance(wanted, Mapping):
        return isinstance(value, str) and value.startswith(wanted["prefix"])
    return type(value) is type(wanted) and value == wanted
