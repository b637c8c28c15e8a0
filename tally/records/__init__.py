"""Records with atomic counters: typed records in a table, whose counters move with every update (docs/records.md).

This module is the public face: import from `tally.records` and from nothing below it.
"""

from .attribute_values import RecordMismatchError
from .expression_syntax import ExpressionError, Path
from .expressions import Condition, UpdateExpression
from .extensions import AtomicCounterExtension, Extension, WriteContext, WriteModification
from .record_class import AtomicCounter, RecordClass, atomic_counter, attribute, partition_key, record, sort_key
from .table import RecordChangedError, RecordExistsError, Records

__all__ = [
    "AtomicCounter",
    "AtomicCounterExtension",
    "Condition",
    "ExpressionError",
    "Extension",
    "Path",
    "RecordChangedError",
    "RecordClass",
    "RecordExistsError",
    "RecordMismatchError",
    "Records",
    "UpdateExpression",
    "WriteContext",
    "WriteModification",
    "atomic_counter",
    "attribute",
    "partition_key",
    "record",
    "sort_key",
]
