"""A request to Tally, and how a method sends it. The client is these files and `tally/errors.py`, and needs boto3
only."""

from __future__ import annotations

import functools
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, cast

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True)
class Reply:
    """The answer of a function."""

    status: int
    body: Mapping[str, Any]
    replayed: bool


@dataclass(frozen=True)
class Request(Generic[T_co]):
    """One operation of one function. It has its key from the start, so a retry counts once."""

    function: str
    operation: str
    caller: str | None
    fields: Mapping[str, Any]

    @classmethod
    def of(cls, function: str, operation: str, arguments: Mapping[str, Any]) -> Request[T_co]:
        """The request with the arguments that are given, and a key if it takes one."""
        given = {name.rstrip("_"): _plain(value) for name, value in arguments.items() if value is not None}
        if "idempotency_key" in arguments:
            given.setdefault("idempotency_key", secrets.token_urlsafe(18))  # nobody guesses it
        return cls(function, operation, given.pop("caller", None), given)

    @property
    def idempotency_key(self) -> str | None:
        """The key, given or made; None if the operation takes no key."""
        return self.fields.get("idempotency_key")

    def read(self, reply: Reply) -> T_co:
        """The result in a reply: the answer's body. That of a change with a key also says whether it is `replayed`."""
        more = {} if self.idempotency_key is None else {"replayed": reply.replayed}
        return cast(T_co, {**reply.body, **more})


def _plain(value: Any) -> Any:
    """The value as JSON has it."""
    return list(value) if isinstance(value, Iterable) and not isinstance(value, str) else value


class Sender(Protocol):
    """`tally.client.Tally`: it knows how to send."""

    def send(self, request: Request[T]) -> T:
        """Send one request and return its result."""
        ...


def sends(build: Callable[P, Request[T]]) -> Callable[Concatenate[Sender, P], T]:
    """The method that sends the request that `build` makes."""

    @functools.wraps(build)
    def send(sender: Sender, /, *arguments: P.args, **named: P.kwargs) -> T:
        return sender.send(build(*arguments, **named))

    return send
