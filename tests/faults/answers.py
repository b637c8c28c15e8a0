"""Makes answers in DynamoDB's format, which the proxy sends in place of the engine's answers."""

from __future__ import annotations

import json
import secrets
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from .plans import Fault, FaultKind

_SHAPE_PREFIX = "com.amazonaws.dynamodb.v20120810#"
_MESSAGES = {
    "TransactionConflict": "Transaction is ongoing for the item",
    "ThrottlingError": "Throughput exceeds the current capacity of your table or index.",
    "ProvisionedThroughputExceeded": "The level of configured provisioned throughput for the table was exceeded.",
    "ConditionalCheckFailed": "The conditional request failed",
}
_STATUS_LINES = {400: "400 Bad Request", 500: "500 Internal Server Error"}


class Cause(NamedTuple):
    """Why one write of a transaction failed. `item`: what a failed condition found; None: no item."""

    code: str
    item: Mapping[str, Any] | None = None


def error(status: int, code: str, message: str, **more: Any) -> bytes:
    """Returns an HTTP response with an error of DynamoDB. `more`: further members of the body."""
    body = json.dumps({"__type": _SHAPE_PREFIX + code, "message": message, **more}).encode()
    head = (
        f"HTTP/1.1 {_STATUS_LINES[status]}\r\n"
        "content-type: application/x-amz-json-1.0\r\n"
        f"x-amzn-requestid: {secrets.token_hex(26).upper()}\r\n"
        f"x-amz-crc32: {zlib.crc32(body)}\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def cancelled(request: bytes, causes: Mapping[int, Cause]) -> bytes:
    """Returns the answer to a cancelled TransactWriteItems, with a reason for each write.

    `causes`: by the index of the write. -1 and each index beyond the last write mean the last write. A spilled change
    has fewer writes than its plan expects.
    """
    reasons: list[dict[str, Any]] = [{"Code": "None"} for _ in json.loads(request)["TransactItems"]]
    for index, cause in causes.items():
        index = min(index, len(reasons) - 1)
        reasons[index] = {"Code": cause.code, "Message": _MESSAGES[cause.code]}
        if cause.item:
            reasons[index]["Item"] = cause.item
    codes = ", ".join(reason["Code"] for reason in reasons)
    message = f"Transaction cancelled, please refer cancellation reasons for specific reasons [{codes}]"
    return error(400, "TransactionCanceledException", message, CancellationReasons=reasons)


def answer_for(fault: Fault, operation: str, body: bytes) -> bytes | None:
    """Returns the answer to a request that is not forwarded; None: no answer."""
    match fault.kind:
        case FaultKind.FAIL_BEFORE:
            return error(500, "InternalServerError", "injected before the write")
        case FaultKind.THROTTLE:
            text = _MESSAGES["ProvisionedThroughputExceeded"]
            return error(400, "ProvisionedThroughputExceededException", text)
        case FaultKind.CONFLICT if operation != "TransactWriteItems":
            return error(400, "TransactionConflictException", _MESSAGES["TransactionConflict"])
        case FaultKind.CONFLICT:
            return cancelled(body, {fault.at: Cause("TransactionConflict")})
        case FaultKind.THROTTLED_TRANSACTION:
            return cancelled(body, {fault.at: Cause("ThrottlingError")})
        case FaultKind.CONDITION_AND_CONFLICT:
            failed_condition = Cause("ConditionalCheckFailed", json.loads(fault.item))
            return cancelled(body, {fault.at: Cause(fault.code), fault.failed_at: failed_condition})
        case FaultKind.ERROR_BEFORE:
            return error(400, fault.code, "injected before the write")
    return None
