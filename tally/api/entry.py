"""The entry point of each function that serves callers: one event in, one answer out.

An HTTP API event gets an HTTP response. Other Lambdas send `{"operation": "increment", …}` and get `{"status",
"replayed", "body"}`, or send `{"batch": [event, …]}` and get `{"results": [answer, …]}`.

Lambda takes every answer to an asynchronous invocation for a success. So for a single event, and for a batch
with `"on_failure": "raise"`, the function raises an error that is not the caller's fault, such as a bug. Lambda then
sends the event again, and after its last attempt puts the event into the queue of failed events.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeGuard

from tally import fields, observe
from tally.counter import Counter
from tally.dynamo.client import ANSWER_RESERVE_S, STORE_METER, Call, Store, dynamodb_client
from tally.errors import (
    CallerError,
    ForbiddenError,
    InvalidInputError,
    NotFoundError,
    PayloadTooLargeError,
    StoreBusyError,
    TallyError,
    problem_document,
)
from tally.observe import logger
from tally.pages import Pages
from tally.settings import Settings

from . import http, texts
from .kind import FieldContext
from .operation import Access, Answer, Operation, Route
from .texts import Text

BATCH_ENTRIES_MAX = 100
_DIRECT_EXTRAS = frozenset({"operation", "caller"})  # any direct event may have these, besides fields of the operation

Outcome = Answer[Any] | TallyError


class UncheckedRequest(NamedTuple):
    """One request, read but not checked. `caller`, and `raw` (the fields by name), are as the event has them."""

    operation: Operation
    needs_caller: bool
    caller: object  # None: the event names no caller
    raw: Mapping[str, object]
    started_s: float  # on time.monotonic()'s clock
    store_usage_before: tuple[int, float]
    """The attempts that the process had made at the store before this request, and the seconds that they took."""


class RequestHandler:
    """The handler of one Lambda function. Made at cold start: it reads the settings and makes the client."""

    def __init__(
        self,
        operations: Iterable[Operation],
        routes: Iterable[Route],
        counters: Mapping[str, Counter],
        pages: Pages,
        store: Store | None = None,
        served_counters: Collection[str] | None = None,
    ) -> None:
        """`operations`: what direct events may name. `counters`: the declared counters, by name. `pages`: makes the URL
        of a page canonical. `served_counters`: the names of the counters that the function may touch; None: all."""
        self.operations_by_name = {operation.name: operation for operation in operations}
        self.routes_by_key = {key: route for route in routes for key in route.keys}
        self.counters = counters
        self.served_counters = counters if served_counters is None else served_counters
        self.pages = pages
        self.store = store or Store(dynamodb_client(), Settings.from_environment())

    def __call__(self, event: Mapping[str, Any], context: Any) -> dict[str, Any]:
        """Answers one invocation. For a direct event, and a batch with `on_failure`, raises errors that are Tally's."""
        deadline_s = self.store.clock() + context.get_remaining_time_in_millis() / 1000 - ANSWER_RESERVE_S
        request_id = getattr(context, "aws_request_id", "") or "local"
        logger.refresh_sample_rate_calculation()  # decides whether this invocation logs its successes
        with observe.metrics():
            if http.is_request(event):
                request_id = event["requestContext"]["requestId"]
                logger.set_correlation_id(request_id)
                answered = self._answer_http(event, deadline_s, request_id)
                return answered | {"body": ""} if event["routeKey"].startswith("HEAD ") else answered
            logger.set_correlation_id(request_id)
            if isinstance(event, Mapping) and "batch" in event:
                return self._answer_batch(event, deadline_s, request_id)
            answer = self._answer(partial(self._direct_request, event), deadline_s)
            if _is_own_failure(answer):
                raise answer  # if the invocation is asynchronous, Lambda sends the event again
            return _direct_response(answer, request_id)

    def _answer_http(self, event: Mapping[str, Any], deadline_s: float, request_id: str) -> dict[str, Any]:
        route = self.routes_by_key.get(event["routeKey"])

        def read() -> UncheckedRequest:
            if route is None:
                raise NotFoundError("There is no such operation.")
            client = self.store.settings.console_client
            caller = http.verified_caller(event, route, client) if route.needs_caller else None
            raw = http.raw_fields(event, route, cdn=self.store.settings.has_cdn)
            used_before = STORE_METER.attempts, STORE_METER.elapsed_s
            return UncheckedRequest(route.operation, route.needs_caller, caller, raw, time.monotonic(), used_before)

        answer = self._answer(read, deadline_s)
        if isinstance(answer, TallyError):
            return http.error_response(answer, request_id)
        body = answer.body
        if not isinstance(body, Text):
            if not (route and route.is_cacheable):
                return http.response(answer.status, body, replayed=answer.replayed)
            body = Text(http.dumps(body), http.JSON_MEDIA_TYPE, answer.max_age_s, http.version_tag(body))
        return texts.response(body, event.get("headers", {}))

    def _answer_batch(self, event: Mapping[str, Any], deadline_s: float, request_id: str) -> dict[str, Any]:
        """Answers each entry by itself, in order. If less time is left than the slowest entry took, an entry gets 503.

        With `"on_failure": "raise"`, raises the first error that is not the caller's, after all entries were tried.
        """
        entries = event["batch"]
        refusal: CallerError | None = None
        if not event.keys() <= {"batch", "on_failure"} or not isinstance(entries, list) or not entries:
            detail = "batch must be a list of events, and the only field of its event besides on_failure."
            refusal = InvalidInputError(detail, field="batch")
        elif event.get("on_failure", "raise") != "raise":
            refusal = InvalidInputError('on_failure must be "raise", or left out.', field="on_failure")
        elif len(entries) > BATCH_ENTRIES_MAX:
            refusal = PayloadTooLargeError(f"A batch holds at most {BATCH_ENTRIES_MAX} events.", field="batch")
        if refusal:
            _log_and_meter(None, refusal)
            return _direct_response(refusal, request_id)
        answers: list[Outcome] = []
        slowest_s = 0.0
        for entry in entries:
            began_s = self.store.clock()
            answers.append(self._answer(partial(self._direct_request, entry), deadline_s - slowest_s))
            slowest_s = max(slowest_s, self.store.clock() - began_s)
        failed = [answer for answer in answers if _is_own_failure(answer)]
        if failed and "on_failure" in event:
            detail = f"{len(failed)} of {len(answers)} entries are to be sent again. The first: {failed[0].detail}"
            raise type(failed[0])(detail)
        return {"results": [_direct_response(answer, request_id) for answer in answers]}

    def _direct_request(self, event: object) -> UncheckedRequest:
        if not isinstance(event, Mapping):
            raise InvalidInputError("The event must be a JSON object.")
        name = event.get("operation")
        operation = self.operations_by_name.get(name) if isinstance(name, str) else None
        if operation is None:
            known = ", ".join(sorted(self.operations_by_name))
            raise InvalidInputError(f"operation must be one of: {known}.", field="operation")
        names = {field.name for field in operation.fields}  # `caller` may be a field, too: who made the change to void
        raw = {field: value for field, value in event.items() if field in names or field not in _DIRECT_EXTRAS}
        unknown = sorted(str(field) for field in raw.keys() - names)
        if unknown:
            raise InvalidInputError(f"There is no field {unknown[0][:64]!r} here.", field=unknown[0][:64])
        counter_name = raw.get("counter")
        counter = self.counters.get(counter_name) if isinstance(counter_name, str) else None
        access = operation.access if counter is None else operation.access_of(counter)
        # An event need not name its caller if anyone may use the operation, or if the operation reads with a scope.
        needs_caller = access is not Access.ANYONE and (operation.writes or operation.access is Access.SIGNED_IN)
        used_before = STORE_METER.attempts, STORE_METER.elapsed_s
        return UncheckedRequest(operation, needs_caller, event.get("caller"), raw, time.monotonic(), used_before)

    def _answer(self, read: Callable[[], UncheckedRequest], deadline_s: float) -> Outcome:
        """Answers one request. An error that is not a TallyError is a bug: it is logged, and answered with 500."""
        request = None
        outcome: Outcome
        try:
            request = read()
            call, arguments = self._check(request, deadline_s)
            outcome = request.operation.function(call, **arguments)
        except CallerError as error:
            outcome = error
        except TallyError as error:
            logger.warning("failed", exc_info=error)
            outcome = error
        except Exception as error:
            logger.error("bug", exc_info=error)
            outcome = TallyError("Tally failed and logged the error.")
        _log_and_meter(request, outcome)
        return outcome

    def _check(self, request: UncheckedRequest, deadline_s: float) -> tuple[Call, dict[str, Any]]:
        """Checks each field, and returns the call and the arguments of its operation. Raises CallerError."""
        user = None if request.caller is None else fields.user(request.caller, "caller")
        if user is None and request.needs_caller:
            raise InvalidInputError("caller is missing: name the user or service that asks.", field="caller")
        context = FieldContext(user is None, self.store.settings.page_hosts, self.counters, self.pages)
        arguments: dict[str, Any] = {}
        for field in request.operation.fields:
            if field.name in request.raw:  # null does not mean "left out": the check refuses null
                arguments[field.argument] = value = field.kind.parse(request.raw[field.name], field.http_name, context)
                if field.kind.is_counter and (refusal := request.operation.refusal_for(value)):
                    raise refusal
                if field.kind.is_counter and value.name not in self.served_counters:  # in a function for strangers
                    raise ForbiddenError(f"Only services change {value.name}.", field="counter")
            elif field.required:
                raise field.kind.missing_error(field.http_name)
        if self.store.clock() >= deadline_s:
            raise StoreBusyError("Tally had no time left for the request.")
        return Call(self.store, user, deadline_s, counters=self.counters, pages=self.pages), arguments


def _is_own_failure(answer: Outcome) -> TypeGuard[TallyError]:
    """Returns whether Tally failed, and not the caller, so that Lambda must not take the answer for a success."""
    return isinstance(answer, TallyError) and not isinstance(answer, CallerError)


def _log_and_meter(request: UncheckedRequest | None, outcome: Outcome) -> None:
    """Logs one answer, sampled if it is a success. Meters replays, refusals and failures. The bookkeeper meters counted
    changes, because a line for each batch of stream records costs less than a line for each request."""
    attempts_before, before_s = request.store_usage_before if request else (STORE_METER.attempts, STORE_METER.elapsed_s)
    failed = isinstance(outcome, TallyError)
    replayed = isinstance(outcome, Answer) and outcome.replayed
    log = logger.warning if failed else logger.info
    log(
        "answered",
        extra={
            "operation": request.operation.name if request else None,
            "status": outcome.status,
            "replayed": replayed,
            "error": outcome.slug if isinstance(outcome, TallyError) else None,
            "took_ms": round((time.monotonic() - request.started_s) * 1000, 1) if request else None,
            "store_ms": round((STORE_METER.elapsed_s - before_s) * 1000, 1),
            "store_attempts": STORE_METER.attempts - attempts_before,
        },
    )
    if failed and not isinstance(outcome, CallerError):
        observe.count_failure()
    if request is None or not request.operation.changes_numbers:
        return
    if isinstance(outcome, CallerError):
        observe.count(observe.REFUSED)
    elif replayed:
        observe.count(observe.REPLAYED)


def _direct_response(outcome: Outcome, request_id: str) -> dict[str, Any]:
    if isinstance(outcome, TallyError):
        return {"status": outcome.status, "replayed": False, "body": problem_document(outcome, request_id=request_id)}
    body = outcome.body
    body = {"media_type": body.media_type, "text": body.text} if isinstance(body, Text) else dict(body)
    return {"status": outcome.status, "replayed": outcome.replayed, "body": body}
