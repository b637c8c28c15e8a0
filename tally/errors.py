"""Every error that Tally raises, its HTTP status, and the map from botocore's errors.

TallyError
├── CallerError                     the request is at fault: the caller can correct it
│   ├── InvalidInputError           400
│   ├── WriteInvalidError           400  DynamoDB does not accept a team's own write (transact.py)
│   ├── UnauthenticatedError        401
│   ├── ForbiddenError              403
│   ├── NotFoundError               404
│   ├── EditConflictError           409
│   ├── ParentRemovedError          409  the parent of a child was removed
│   ├── LimitReachedError           409  a floor or ceiling; `left` is the amount that still fits
│   ├── WriteRefusedError           409  the condition of a team's own write failed (transact.py)
│   ├── NotCountedError             409  the items of a team's table are not counted yet (team/scan_state.py)
│   ├── HoldSettledError            409
│   ├── CounterRetiredError         409  the declaration says `retired=True`
│   ├── RecordExistsError           409  (records/table.py)
│   ├── RecordChangedError          409  (records/table.py)
│   ├── PreconditionFailedError     412
│   ├── PayloadTooLargeError        413
│   ├── UnsupportedMediaTypeError   415
│   ├── KeyReusedError              422
│   └── PreconditionRequiredError   428
├── RetryableError                  the request is right: send it again, with the same key
│   ├── StoreBusyError              503  conflicts or throttling beyond Tally's retries
│   ├── StoreUnreachableError       503  no answer: the change may or may not be counted
│   ├── StoreRefusedError           503  a fault of the deployment: permissions, a missing table
│   └── NotCommittedError           503  no key reached the receipts, or Tally did not write the key's receipt
├── ConfigurationError              500  the function does not start
├── ExpressionError                 500  a bug of ours (records/expressions.py)
├── RecordMismatchError             500  an item that does not fit its record class (records/record_class.py)
├── (of stream consumers, the sweep and the command; no request causes them)
│   ├── PoisonRecordError           500  a stream record that the consumer cannot apply (streams/record.py)
│   │   └── DeadLetterExpiredError  500  a dead letter has expired (streams/dead_letters.py)
│   ├── WriteRejectedError          500  a write that DynamoDB rejects (dynamo/transactions.py)
│   ├── ConditionFailedError        500  another writer was first (dynamo/transactions.py)
│   ├── ScanClosedError             500  a scan of a team's table is closed or too old (team/scan_reader.py)
│   ├── UncountableError            500  no item of a table can be counted, because of its keys (team/scan_reader.py)
│   ├── RepairNotReadyError         500  the watermark does not allow a repair yet (maintenance/reconcile.py)
│   ├── RepairContentionError       500  a tally keeps moving during a recount or repair (maintenance/reconcile.py)
│   ├── OutOfBoundsError            500  a repair beyond a floor or ceiling (maintenance/reconcile.py)
│   └── TablesInUseError            500  something writes to the tables of a restore (maintenance/restored.py)
└── (control flow inside the core, never answered)
    ├── AlreadyCountedError         the key was counted before
    ├── HotTallyError               the change must spill: nothing was written
    └── ChangeRefusedError          a condition of the change failed
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from botocore.exceptions import BotoCoreError, ChecksumError, ClientError, HTTPClientError
from botocore.exceptions import ConnectionError as BotoConnectionError

PROBLEM_TYPE_PREFIX = "urn:problem-type:tally:"
RETRY_AFTER_S = 1  # in `Retry-After`, with each RetryableError
SEND_AGAIN = "Send the request again with the same key."


class TallyError(Exception):
    """An error of Tally. `slug` is the stable end of the problem type; `status` is the HTTP status."""

    slug: ClassVar[str] = "internal"
    status: ClassVar[int] = 500
    title: ClassVar[str] = "Internal error"

    def __init__(self, detail: str, **members: str | int | None) -> None:
        """`members`: further members of the problem document, as contract/error_responses.py describes them."""
        super().__init__(detail)
        self.detail = detail
        self.members = members

    @property
    def field(self) -> str | None:
        """The input at fault; None if no single input is at fault."""
        field = self.members.get("field")
        return None if field is None else str(field)


class CallerError(TallyError):
    """The request is malformed, not allowed, or does not fit what is stored. A retry at once gets the same error."""


class InvalidInputError(CallerError):
    """The request is malformed. `field` names the input."""

    slug, status, title = "invalid-input", 400, "The request is malformed"


class WriteInvalidError(CallerError):
    """DynamoDB rejected a write of your own (`tally.transact`). `field` names the write."""

    slug, status, title = "write-invalid", 400, "DynamoDB does not accept a write"


class UnauthenticatedError(CallerError):
    """The caller has not signed in."""

    slug, status, title = "unauthenticated", 401, "Sign in first"


class ForbiddenError(CallerError):
    """The caller may not do this, or the deployment does not list the host of the page."""

    slug, status, title = "forbidden", 403, "Not allowed"


class NotFoundError(CallerError):
    """There is no such post, counter, hold or receipt, or Tally no longer keeps it."""

    slug, status, title = "not-found", 404, "Not found"


class EditConflictError(CallerError):
    """Other calls edited the post during each attempt of this call. Read the post, then edit it again."""

    slug, status, title = "edit-conflict", 409, "The post changed during every attempt to edit it"


class ParentRemovedError(CallerError):
    """The post or other parent was removed. Its id can be used again after about 15 minutes."""

    slug, status, title = "parent-removed", 409, "Deleted; the id can be used again in about 15 minutes"


class LimitReachedError(CallerError):
    """The change does not fit the limit, or a numbered counter has given out the new value. `left`: the amount that
    fits; below 0 if the number is beyond the limit. `Retry-After`: seconds to the next period, if it fits there."""

    slug, status, title = "limit-reached", 409, "Limit reached"

    @property
    def left(self) -> int | None:
        """The amount that may still be taken or added; None if the request set a value."""
        left = self.members.get("left")
        return left if isinstance(left, int) else None

    @property
    def retry_after_s(self) -> int | None:
        """The seconds until the next period begins, if the amount fits into an empty period; None otherwise."""
        seconds = self.members.get("retry_after_s")
        return seconds if isinstance(seconds, int) else None


class WriteRefusedError(CallerError):
    """The condition of a write of your own (`tally.transact`) failed. `item`: the stored item in DynamoDB's wire form;
    None: no item."""

    slug, status, title = "write-refused", 409, "The condition of a write failed"

    def __init__(self, detail: str, *, item: Mapping[str, Any] | None = None, **members: str | int | None) -> None:
        super().__init__(detail, **members)
        self.item = item

    @property
    def write(self) -> int | None:
        """The place of the write among your writes, from 0."""
        write = self.members.get("write")
        return write if isinstance(write, int) else None


class NotCountedError(CallerError):
    """No scan has counted your own items, or a new scan is needed."""

    slug, status, title = "not-counted", 409, "The items are not counted yet"


class HoldSettledError(CallerError):
    """The hold was committed, released, expired or voided before. A void needs a committed hold."""

    slug, status, title = "hold-settled", 409, "The hold is already settled"


class CounterRetiredError(CallerError):
    """The counter is retired, and takes no changes."""

    slug, status, title = "counter-retired", 409, "The counter takes no more changes"


class PreconditionFailedError(CallerError):
    """The counter has another version than `If-Match` says. `version`: the present version."""

    slug, status, title = "precondition-failed", 412, "The counter has moved"

    @property
    def version(self) -> int | None:
        """The present version of the counter; None if the error does not say it."""
        version = self.members.get("version")
        return version if isinstance(version, int) else None


class PreconditionRequiredError(CallerError):
    """`If-Match` is missing. Send the `ETag` of a read."""

    slug, status, title = "precondition-required", 428, "If-Match is needed"


class PayloadTooLargeError(CallerError):
    """The body is larger than the operation takes, or a batch has too many entries."""

    slug, status, title = "payload-too-large", 413, "The body is too large"


class UnsupportedMediaTypeError(CallerError):
    """The body is not JSON, or it is compressed."""

    slug, status, title = "unsupported-media-type", 415, "The content type is not supported"


class KeyReusedError(CallerError):
    """The key was used for another change of the same operation and target."""

    slug, status, title = "key-reused", 422, "The idempotency key was used for another change"


class RetryableError(TallyError):
    """The answer has `Retry-After`. A retry with the same key counts once."""

    slug, status, title = "unavailable", 503, "Try again"


class StoreBusyError(RetryableError):
    """DynamoDB had more conflicts or throttling than Tally retries."""

    slug, title = "busy", "The store is busy"


class StoreUnreachableError(RetryableError):
    """DynamoDB gave no answer in time. The change may or may not be counted."""

    slug, title = "unreachable", "The store gave no answer"


class StoreRefusedError(RetryableError):
    """DynamoDB refused the request, as without a permission or table."""

    slug, title = "store-refused", "The store refused the request: a fault of the deployment"


class NotCommittedError(RetryableError):
    """No key arrived, or its receipt is not Tally's."""

    slug, title = "not-committed", "The change was not committed"


class ConfigurationError(TallyError):
    """`counters.py` or a setting is wrong: the function does not start."""

    slug, status, title = "misconfigured", 500, "The deployment is misconfigured"


class AlreadyCountedError(TallyError):
    """The key has a live receipt. `item` is the stored receipt, in DynamoDB's wire form."""

    def __init__(self, item: Mapping[str, Any]) -> None:
        super().__init__("the key was counted before")
        self.item = item


class HotTallyError(TallyError):
    """The tally is hot: the change must spill. Nothing was written."""

    def __init__(self) -> None:
        super().__init__("the tally is hot")


class ChangeRefusedError(TallyError):
    """Conditions of the change failed.

    `old_items` has an entry for each write of the change: None if the write's condition held, else the stored item. The
    entry is empty if no item is stored, or if the write did not ask for the item. `shard`: the shard of the attempt.
    """

    def __init__(self, old_items: Sequence[Mapping[str, Any] | None], shard: int) -> None:
        super().__init__("a condition of the change failed")
        self.old_items = old_items
        self.shard = shard


# DynamoDB's codes for StoreBusyError and StoreUnreachableError. Cancelled transactions and failed conditions are not
# here, because `dynamo/transactions.py` handles them.
BUSY_CODES = frozenset({
    "ProvisionedThroughputExceededException",
    "ThrottlingException",
    "ThrottlingError",
    "RequestLimitExceeded",
    "LimitExceededException",
    "TransactionConflictException",
    "ReplicatedWriteConflictException",
})  # fmt: skip
UNREACHABLE_CODES = frozenset({
    "InternalServerError",
    "ServiceUnavailable",
    "RequestTimeout",
    "RequestTimeoutException",
    "TransactionInProgressException",
})  # fmt: skip


def from_botocore(error: ClientError | BotoCoreError) -> TallyError:
    """Returns the error to raise for an error of botocore. Unknown errors are the deployment's fault, and retryable."""
    if isinstance(error, HTTPClientError | BotoConnectionError | ChecksumError):
        return StoreUnreachableError("The store gave no answer in time.")
    if isinstance(error, ClientError):
        code = error.response.get("Error", {}).get("Code", "")
        if code in BUSY_CODES:
            return StoreBusyError("The store gets more requests than it takes.")
        if code in UNREACHABLE_CODES or error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0) >= 500:
            return StoreUnreachableError("The store failed.")
    return StoreRefusedError("The store refused the request, which is a fault of the deployment.")


def problem_document(error: TallyError, *, request_id: str | None = None) -> dict[str, Any]:
    """Returns the RFC 9457 problem document of an error. The detail of a RetryableError ends with SEND_AGAIN."""
    detail = error.detail if error.status != 500 else "Tally failed and logged the error."
    if isinstance(error, RetryableError) and not detail.endswith(SEND_AGAIN):  # errors of tally.client end so
        detail = f"{detail} {SEND_AGAIN}"
    document: dict[str, Any] = {
        "type": PROBLEM_TYPE_PREFIX + error.slug,
        "title": error.title,
        "status": error.status,
        "detail": detail,
    }
    document |= {name: value for name, value in error.members.items() if value is not None}
    if request_id is not None and error.status >= 500:
        document["request_id"] = request_id
    return document
