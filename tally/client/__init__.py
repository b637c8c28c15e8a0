"""Tally for other Lambda functions: a method for each operation, safe to retry, with Tally's own errors.

    from tally.client import Tally, requests

    tally = Tally.from_environment(caller="checkout")
    tally.increment("plays", "9f3a")
    results = tally.batch([requests.increment("plays", "9f3a"), requests.increment("stock", "mug", amount=-1)])

The client needs boto3, which Lambda's runtime has, and of `tally` only `client/`, `errors.py` and `ids.py`. Bundle
these files, or make a layer of them (docs/functions.md).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from random import SystemRandom
from typing import Any, Generic, NamedTuple, TypeVar

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError, IncompleteReadError
from botocore.exceptions import ConnectionError as BotoConnectionError

from ..errors import (
    PROBLEM_TYPE_PREFIX,
    CallerError,
    ConfigurationError,
    PayloadTooLargeError,
    RetryableError,
    StoreBusyError,
    StoreUnreachableError,
    TallyError,
)
from . import requests
from .request import EVENT_BYTES_MAX, Reply, Request, encode_event
from .requests import Methods

FUNCTIONS = (  # Tally's names of the functions that serve callers
    "increments", "changes", "reads", "children", "holds", "posts", "visits", "receipts", "series", "drift", "health",
)  # fmt: skip
BATCH_ENTRIES_MAX = 100  # Tally takes no more requests in one event
DEADLINE_DEFAULT_S = 15.0
ATTEMPTS_MAX = 6
PAUSE_FIRST_S = 0.2  # the first pause takes a random time up to this; the bound doubles with each attempt
PAUSE_MAX_S = 2.0
CONNECT_S_MAX = 1.0  # an attempt's time to connect to Lambda
# After these errors of Lambda, and after a 5xx, a retry can succeed.
_BUSY_CODES = frozenset(
    {"TooManyRequestsException", "ThrottlingException", "ResourceConflictException", "SnapStartNotReadyException"}
)
# The starts of `errorType` in Lambda's answer if the function's environment died during the call.
_DEAD_ENVIRONMENT_ERRORS = ("Sandbox.", "Runtime.ExitError", "Extension.")
_FOREIGN_ANSWER = "The answer does not come from one of Tally's functions."
_STANDARD_MEMBERS = frozenset({"type", "title", "status", "detail"})

T = TypeVar("T")
__all__ = ["Request", "Tally", "requests"]


@dataclass(frozen=True)
class Tally(Methods):
    """Calls Tally's functions. Make it once, outside of the handler; threads may share it.

    Every method raises TallyError: CallerError if the request is at fault, RetryableError if all attempts failed. After
    a RetryableError the change may or may not be counted. It is safe to send it again with the same key.
    """

    functions: Mapping[str, str]
    """The name or ARN of each Lambda function that you use, by Tally's name for it (FUNCTIONS)."""
    caller: str | None = None
    """The caller of requests that name no caller: a service's name, or a user's `sub`."""
    deadline_s: float = DEADLINE_DEFAULT_S
    """The time for one call or one batch, with all its retries. One attempt takes at most a third of the deadline."""
    lambda_client: Any = field(default=None, compare=False)
    """A boto3 client for Lambda. Your own client keeps its time-outs, and should not retry by itself."""

    def __post_init__(self) -> None:
        if self.lambda_client is None:
            connect_s = min(CONNECT_S_MAX, self._attempt_s / 2)
            config = Config(
                connect_timeout=connect_s,
                read_timeout=self._attempt_s - connect_s,
                retries={"total_max_attempts": 1},  # this class retries: botocore does not see a 503 in an answer
            )
            object.__setattr__(self, "lambda_client", boto3.client("lambda", config=config))

    @property
    def _attempt_s(self) -> float:
        return self.deadline_s / 3  # if the answer of an attempt is lost, there is time for another attempt

    @classmethod
    def from_environment(
        cls, environment: Mapping[str, str] = os.environ, *, variable: str = "TALLY_FUNCTIONS", **options: Any
    ) -> Tally:
        """Make a client of the variable TALLY_FUNCTIONS, which has `functions` as JSON.

        Without it, a function's name is TALLY_FUNCTION_PREFIX followed by Tally's name; TALLY_FUNCTION_QUALIFIER may
        name an alias or a version. `variable`: the variable to read in place of TALLY_FUNCTIONS, for an app that uses
        two deployments. `options`: the other fields of this class. Raises ConfigurationError.
        """
        if variable in environment:
            try:
                functions = json.loads(environment[variable])
            except ValueError:
                functions = None
            if not isinstance(functions, dict) or not all(isinstance(name, str) for name in functions.values()):
                raise ConfigurationError(f"{variable} must be a JSON object of function names or ARNs.")
            return cls(functions, **options)
        if "TALLY_FUNCTION_PREFIX" not in environment:
            raise ConfigurationError(f"Neither {variable} nor TALLY_FUNCTION_PREFIX is set.")
        qualifier = environment.get("TALLY_FUNCTION_QUALIFIER", "")
        prefix, suffix = environment["TALLY_FUNCTION_PREFIX"], f":{qualifier}" if qualifier else ""
        return cls({name: f"{prefix}{name}{suffix}" for name in FUNCTIONS}, **options)

    def send(self, request: Request[T]) -> T:
        """Send one request and return its result. Raises TallyError."""
        end_s, event = time.monotonic() + self.deadline_s, self._event(request)
        return self._with_retries(lambda: request.read(_reply(self._invoke(request.function, event))), end_s)

    def _invoke_later(self, function: str, event: bytes, end_s: float) -> None:
        self._with_retries(lambda: self._invoke(function, event, InvocationType="Event"), end_s)

    def enqueue(self, request: Request[Any]) -> None:
        """Hand one request to Lambda, and do not wait: Lambda itself retries it. Tally's refusals are not reported."""
        self._invoke_later(request.function, self._event(request), time.monotonic() + self.deadline_s)

    def enqueue_batch(self, requests: Iterable[Request[Any]]) -> None:
        """Hand requests to Lambda together, and do not wait: if Tally fails at a request, Lambda retries the event.

        One event has up to 100 requests of one function. Tally's refusals are not reported. If this method raises a
        RetryableError, Lambda may have some of the requests, and you can safely hand over all requests again. If a
        request cannot be sent, this method sends the other requests and raises a CallerError.
        """
        end_s = time.monotonic() + self.deadline_s
        entries, unsendable = self._entries(requests)
        for function, chunk in _chunks(entries):
            self._invoke_later(function, _batch_event(chunk, b', "on_failure": "raise"'), end_s)
        for error in unsendable.values():
            raise error

    def batch(self, requests: Iterable[Request[T]]) -> list[T | TallyError]:
        """Send requests together. Return the result or the error of each request, in order, and raise no such error.

        One event has up to 100 requests of one function, in order. After a RetryableError, a request is sent again.
        """
        end_s = time.monotonic() + self.deadline_s
        entries, unsendable = self._entries(requests)
        results: dict[int, T | TallyError] = {**unsendable}
        for function, chunk in _chunks(entries):
            # If no attempt sends a request, this is its result.
            results.update(dict.fromkeys(chunk, StoreBusyError("No time was left to send this request.")))
            budget, left = _RetryBudget(end_s, self._attempt_s), dict(chunk)
            while left and budget.has_time():
                chunk_results = self._send_once(function, left)
                results.update(chunk_results)
                left = {place: entry for place, entry in left.items() if isinstance(results[place], RetryableError)}
                if left and not budget.wait():
                    break
        return [results[place] for place in sorted(results)]

    def _with_retries(self, attempt: Callable[[], T], end_s: float) -> T:
        budget = _RetryBudget(end_s, self._attempt_s)
        if not budget.has_time():
            raise StoreBusyError("No time was left to send this request.")
        while True:
            try:
                return attempt()
            except RetryableError:
                if not budget.wait():
                    raise

    def _send_once(self, function: str, entries: Mapping[int, _Entry[T]]) -> dict[int, T | TallyError]:
        """Sends entries in one event, without a retry. Returns the result or error of each entry, by place."""
        try:
            answer = self._invoke(function, _batch_event(entries))
            if not isinstance(answer, dict) or not isinstance(answer.get("results"), list):
                _reply(answer)  # raises if the function refused the whole batch
                raise ConfigurationError(_FOREIGN_ANSWER)
        except TallyError as error:
            return dict.fromkeys(entries, error)
        results: dict[int, T | TallyError] = {}
        for (place, entry), reply in zip(entries.items(), answer["results"], strict=True):
            try:
                results[place] = entry.request.read(_reply(reply))
            except TallyError as error:
                results[place] = error
        return results

    def _entries(self, requests: Iterable[Request[T]]) -> tuple[dict[int, _Entry[T]], dict[int, TallyError]]:
        """Returns entries to send, and errors of requests that cannot be sent, by the places of the requests."""
        entries: dict[int, _Entry[T]] = {}
        unsendable: dict[int, TallyError] = {}
        for place, request in enumerate(requests):
            try:
                entries[place] = _Entry(request, self._event(request))
            except CallerError as error:
                unsendable[place] = error
        return entries, unsendable

    def _event(self, request: Request[Any]) -> bytes:
        """Returns the event of a request. Raises InvalidInputError or PayloadTooLargeError."""
        caller = self.caller if request.caller is None else request.caller
        caller_member = {} if caller is None else {"caller": caller}
        return encode_event({"operation": request.operation, **request.fields, **caller_member})

    def _invoke(self, function: str, event: bytes, **options: str) -> Any:
        """Returns the function's answer; None if `options` make the invocation asynchronous. Raises TallyError."""
        if function not in self.functions:
            raise ConfigurationError(f"No name or ARN is set for the function {function!r}.")
        try:
            answer = self.lambda_client.invoke(FunctionName=self.functions[function], Payload=event, **options)
            payload = answer["Payload"].read()
            if options and not answer.get("FunctionError"):
                return None
            document = json.loads(payload)
        except (ClientError, BotoCoreError) as error:
            raise _invocation_error(error) from error
        except ValueError:
            raise StoreUnreachableError("The function's answer was cut off.") from None
        if answer.get("FunctionError"):
            raise _crash_error(document)
        return document


class _Entry(NamedTuple, Generic[T]):
    """A request, and its event in JSON. The place of an entry is the position of its request in the caller's list."""

    request: Request[T]
    event: bytes


@dataclass
class _RetryBudget:
    """The retries that one call has left. An attempt starts only if it is sure to end before `end_s`."""

    end_s: float
    """The end of the call's time, on time.monotonic()'s clock."""
    attempt_s: float  # the longest time of one attempt
    attempts: int = 0  # that have failed

    def has_time(self, pause_s: float = 0.0) -> bool:
        """Whether an attempt after the pause would end in time."""
        return time.monotonic() + pause_s + self.attempt_s <= self.end_s

    def wait(self) -> bool:
        """Sleep before the next attempt; return False at once if no attempt is left."""
        self.attempts += 1
        pause_s = SystemRandom().uniform(0, min(PAUSE_MAX_S, PAUSE_FIRST_S * 2 ** (self.attempts - 1)))
        if self.attempts >= ATTEMPTS_MAX or not self.has_time(pause_s):
            return False
        time.sleep(pause_s)
        return True


def _chunks(entries: Mapping[int, _Entry[T]]) -> Iterator[tuple[str, Mapping[int, _Entry[T]]]]:
    """Yields the entries of each function, by their places: at most BATCH_ENTRIES_MAX and EVENT_BYTES_MAX at a time."""
    for function in dict.fromkeys(entry.request.function for entry in entries.values()):
        chunk: dict[int, _Entry[T]] = {}
        for place, entry in entries.items():
            if entry.request.function != function:
                continue
            size = sum(len(each.event) for each in (*chunk.values(), entry))
            if chunk and (len(chunk) == BATCH_ENTRIES_MAX or size > EVENT_BYTES_MAX):
                yield function, chunk
                chunk = {}
            chunk[place] = entry
        yield function, chunk


def _batch_event(entries: Mapping[int, _Entry[Any]], more_members: bytes = b"") -> bytes:
    """Returns one event with all entries."""
    return b'{"batch": [' + b", ".join(entry.event for entry in entries.values()) + b"]" + more_members + b"}"


def _reply(answer: Any) -> Reply:
    """Returns the reply in a function's answer. If the answer is a problem document, raises its TallyError."""
    if not isinstance(answer, dict) or not {"status", "replayed", "body"} <= answer.keys():
        raise ConfigurationError(_FOREIGN_ANSWER)
    if answer["status"] >= 400:
        raise error_of(answer["body"])
    return Reply(answer["status"], answer["body"], answer["replayed"])


def _error_classes(root: type[TallyError]) -> Iterator[type[TallyError]]:
    """Yields the error classes that an answer can name: each class that defines a slug."""
    if "slug" in vars(root):
        yield root
    for child in root.__subclasses__():
        yield from _error_classes(child)


_CLASSES_BY_SLUG = {each.slug: each for each in _error_classes(TallyError)}
_CLASSES_BY_NAME = {each.__name__: each for each in _error_classes(TallyError)}


def error_of(problem: Mapping[str, Any]) -> TallyError:
    """Returns the error that a problem document describes. If no class has the document's slug, the status decides."""
    status = problem["status"]
    fallback = RetryableError if status == 503 else TallyError if status >= 500 else CallerError
    error_class = _CLASSES_BY_SLUG.get(str(problem["type"]).removeprefix(PROBLEM_TYPE_PREFIX), fallback)
    members = {name: value for name, value in problem.items() if name not in _STANDARD_MEMBERS}
    return error_class(problem["detail"], **members)


def _crash_error(document: Mapping[str, Any]) -> TallyError:
    """Returns the error of a function that raised. It raises a TallyError, too, for the retries of queued events."""
    name, message = str(document.get("errorType", "")), str(document.get("errorMessage", ""))
    if name in _CLASSES_BY_NAME:
        return _CLASSES_BY_NAME[name](message)
    if name.startswith(_DEAD_ENVIRONMENT_ERRORS) or "Task timed out" in message:
        return StoreUnreachableError(f"The function gave no answer: {message}")
    return TallyError(f"The function failed: {name}: {message}")


def _invocation_error(error: ClientError | BotoCoreError) -> TallyError:
    """Returns the error of an invocation that Lambda rejected, or whose answer did not come."""
    if isinstance(error, HTTPClientError | BotoConnectionError | IncompleteReadError):
        return StoreUnreachableError("The function gave no answer in time.")
    if isinstance(error, ClientError):
        code = error.response.get("Error", {}).get("Code", "")
        if code in _BUSY_CODES:
            return StoreBusyError(f"Lambda gets more calls than it takes: {code}.")
        if error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0) >= 500:
            return StoreUnreachableError(f"Lambda failed: {code}.")
        if code == "RequestTooLargeException":
            return PayloadTooLargeError("The request is larger than Lambda takes.")
    return ConfigurationError(f"Lambda does not invoke the function: {error}")
