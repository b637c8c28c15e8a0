"""Records with atomic counters: typed records in a table, whose counters move with every update (docs/records.md).

Import only from `tally.records`: the modules below it are private.
"""

from .expressions import Action, ExpressionError, Path, if_not_exists, list_append
from .extensions import AtomicCounterExtension, Extension, WriteContext, WriteModification
from .record_class import (
    AtomicCounter,
    Attribute,
    RecordMismatchError,
    atomic_counter,
    attribute,
    partition_key,
    record,
    sort_key,
)
from .table import RecordChangedError, RecordExistsError, Records

__all__ = [
    "Action", "AtomicCounter", "AtomicCounterExtension", "Attribute", "ExpressionError", "Extension", "Path",
    "RecordChangedError", "RecordExistsError", "RecordMismatchError", "Records", "WriteContext", "WriteModification",
    "atomic_counter", "attribute", "if_not_exists", "list_append", "partition_key", "record", "sort_key",
]  # fmt: skip
