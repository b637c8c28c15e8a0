"""Event source mappings of DynamoDB streams, and their filters.

`make dev` delivers the records by its own pump (streams/pump.py). A setting that the pump cannot emulate is an error,
so that no function gets other batches in `make dev` than on AWS.
Source: "AWS::Lambda::EventSourceMapping", CloudFormation's reference; "Control which events Lambda sends to your
function", Lambda's developer guide.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from tally.contract.stream_views import KeysByCounter

from ..base.errors import LocalError
from ..base.words import DEV

FIXED: Mapping[str, Any] = {
    "bisects": True,  # splits a failed batch
    "reports_failures": True,  # the function names the records that failed
    "parallel": 1,
    "retries": -1,  # without end
    "age_s": -1,  # of any age
    "begins": "TRIM_HORIZON",  # with the oldest record
}
"""The only values that the pump can emulate."""
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
    """0: the mapping has no tumbling window, so its events do not name the shard."""
    filters: tuple[FilterPattern, ...] = ()
    counters: KeysByCounter | None = None
    """The counters that count the items of this team table, with their keys. None: the table belongs to Tally."""
    stream: str = ""
    """The ARN of a team table's present stream. The team may delete the table and create it again."""

    def takes(self, record: Mapping[str, Any]) -> bool:
        """Whether the function receives the record: one matching filter is enough."""
        return not self.filters or any(matches(pattern, record) for pattern in self.filters)

    def scaled_to(self, minute_s: int) -> StreamMapping:
        """Returns the mapping for minutes of `minute_s`, not 60 s. The batch window is shorter by the same factor, but
        a window of over 1 s keeps at least 1 s."""
        window_s = min(self.batch_window_s, max(1.0, self.batch_window_s * minute_s / 60))
        return replace(self, batch_window_s=window_s)


def read_mapping(mapping: Mapping[str, Any]) -> StreamMapping:
    """Returns the mapping of an entry in the zygote's description. Raises LocalError if the pump cannot emulate it."""
    supported = {one.name for one in fields(StreamMapping)}
    for name in sorted({*mapping, *FIXED} - supported):
        if name not in FIXED or mapping.get(name) != FIXED[name]:
            value = json.dumps(mapping.get(name))
            raise LocalError(f"the mapping {mapping['name']} has {name} {value}, which {DEV} cannot emulate")
    for pattern in mapping["filters"]:
        if not _is_supported(pattern):
            text = f"the mapping {mapping['name']} has the filter {json.dumps(pattern)[:200]}"
            raise LocalError(f"{text}: {DEV} supports only lists of plain values and of prefixes")
    values = {name: value for name, value in mapping.items() if name in supported}
    return StreamMapping(**values | {"filters": tuple(mapping["filters"])})


def _is_supported(pattern: object) -> bool:
    """Whether every leaf is a list of plain values and prefixes, without `numeric`, `exists`, `suffix` and the like."""
    if not isinstance(pattern, dict) or not pattern or "$or" in pattern:
        return False
    return all(
        bool(entry) and all(map(_is_supported_value, entry)) if isinstance(entry, list) else _is_supported(entry)
        for entry in pattern.values()
    )


def _is_supported_value(wanted: object) -> bool:
    if isinstance(wanted, dict):
        return wanted.keys() == {"prefix"} and isinstance(wanted["prefix"], str)
    return isinstance(wanted, str | int | float | None)


def matches(pattern: FilterPattern, document: object) -> bool:
    """Whether every field of the pattern lists the document's value, or a prefix of it."""
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
    """Whether a value equals the wanted value, or begins with the wanted prefix."""
    if isinstance(wanted, Mapping):
        return isinstance(value, str) and value.startswith(wanted["prefix"])
    return type(value) is type(wanted) and value == wanted
