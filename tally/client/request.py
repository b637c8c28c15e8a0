"""A request to Tally, and the method that sends it. The client needs only `errors.py`, `ids.py` and boto3."""

from __future__ import annotations

import functools
import json
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from numbers import Integral
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, cast
from uuid import UUID

from ..errors import InvalidInputError, PayloadTooLargeError
from ..ids import PAGE_COUNTERS, id_of, tally_of, target_of

DIGITS_MAX = 18  # no longer Decimal becomes an int, which could take all memory; `encode_event` refuses the Decimal
EVENT_BYTES_MAX = 1_000_000  # Lambda takes 1 MB of an asynchronous event, and 6 MB of an event whose sender waits
P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True)
class Reply:
    """The answer of a function. `replayed`: an earlier request with the same key had counted the change."""

    status: int
    body: Mapping[str, Any]
    replayed: bool


@dataclass(frozen=True)
class Request(Generic[T_co]):
    """One operation of one function. It has its key before it is sent, so a retry counts once."""

    function: str
    operation: str
    caller: str | None
    fields: Mapping[str, Any]

    @classmethod
    def of(cls, function: str, operation: str, arguments: Mapping[str, Any]) -> Request[T_co]:
        """Returns the request with these arguments and canonical ids. If the operation takes a key and no key is given,
        makes a key. Tally refuses an id that is not text. The argument `from_` is the field `from`."""
        # The argument `from_` is the field `from`, which is a keyword of Python.
        given = {name.rstrip("_"): plain(value) for name, value in arguments.items() if value is not None}
        # `of`: tallies; in a request for receipts an operation, which `tally_of` leaves as it is.
        encoders = dict[str, Callable[[str], str]](of=tally_of)
        if given.get("counter") not in PAGE_COUNTERS:
            encoders["id"] = id_of
        if given.get("of") != "visit":  # the target of a visit is a page's URL, which Tally makes canonical
            encoders["target"] = target_of
        given |= {name: _map_texts(given[name], encode) for name, encode in encoders.items() if name in given}
        if isinstance(given.get("changes"), list):
            given["changes"] = [
                {**one, "id": _map_texts(one["id"], id_of)} if isinstance(one, Mapping) and "id" in one else one
                for one in given["changes"]
            ]
        if "idempotency_key" in arguments:
            given.setdefault("idempotency_key", secrets.token_urlsafe(18))  # cannot be guessed
        return cls(function, operation, given.pop("caller", None), given)

    @property
    def idempotency_key(self) -> str | None:
        """The key, given or made; None if the operation takes no key."""
        return self.fields.get("idempotency_key")

    def read(self, reply: Reply) -> T_co:
        """Returns the body of a reply. The body of a change with a key also has `replayed`."""
        added = {} if self.idempotency_key is None else {"replayed": reply.replayed}
        return cast(T_co, {**reply.body, **added})


def _map_texts(value: Any, encode: Callable[[str], str]) -> Any:
    """Applies `encode` to a text, or to each text of a list."""
    if isinstance(value, list):
        return [encode(one) if isinstance(one, str) else one for one in value]
    return encode(value) if isinstance(value, str) else value


def plain(value: Any) -> Any:
    """Returns a value that JSON can write: a UUID as text, a whole Decimal as int, an iterable as a list."""
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, Decimal):
        return int(value) if value.is_finite() and value.adjusted() < DIGITS_MAX and value == int(value) else value
    if isinstance(value, Integral) and not isinstance(value, int):  # such as NumPy's int64
        return int(value)
    try:
        if isinstance(value, Mapping):
            return dict(value)
        return list(value) if isinstance(value, Iterable) and not isinstance(value, str | bytes | bytearray) else value
    except Exception as error:  # the value is not readable; `encode_event` refuses any exception as a value
        return error


def encode_event(event: Mapping[str, Any]) -> bytes:
    """Returns the event in JSON. If JSON cannot write it, raises InvalidInputError. Raises PayloadTooLargeError."""
    try:
        payload = json.dumps(event, default=_default, allow_nan=False, ensure_ascii=False).encode()
    except Exception as error:  # a date, NaN, a circle, half a surrogate pair, deep nesting, or an error of an object
        raise InvalidInputError(f"The request cannot be sent as JSON: {error}") from None
    if len(payload) > EVENT_BYTES_MAX:
        raise PayloadTooLargeError(f"The request is larger than {EVENT_BYTES_MAX} bytes.")
    return payload


def _default(value: Any) -> Any:
    plain_value = plain(value)
    if plain_value is value:
        raise TypeError(f"{value!r:.80} cannot be written as JSON")
    return plain_value


class Sender(Protocol):
    """A sender of requests: `tally.client.Tally`."""

    def send(self, request: Request[T]) -> T:
        """Send one request and return its result."""
        ...


def sends(build: Callable[P, Request[T]]) -> Callable[Concatenate[Sender, P], T]:
    """Returns the method that sends the request of `build`."""

    @functools.wraps(build)
    def send(sender: Sender, /, *arguments: P.args, **named: P.kwargs) -> T:
        return sender.send(build(*arguments, **named))

    return send
