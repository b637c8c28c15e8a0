"""The DynamoDB client, the state of one process (`Store`), and the context of one operation (`Call`)."""

from __future__ import annotations

import gc
import random
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeVar

from ..pages import DROP_NOTHING, Pages
from .clock import CLOCK
from .contention import Breaker, Retries, Spread


@contextmanager
def _gc_paused() -> Iterator[None]:
    """Pauses garbage collection, which takes an eighth of a cold start. At the end, exempts all objects that exist from
    later collections."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.freeze()
            gc.enable()


with _gc_paused():
    import boto3
    from botocore.config import Config

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

    from ..counter import Counter
    from ..settings import Settings

T = TypeVar("T")
R = TypeVar("R")
WRITER_THREADS = 16  # writes at once: a thousand writes take about a second

CALL_TIME_DEFAULT_S = 8.0
"""Time for one call if no Lambda context gives a shorter one."""

ANSWER_RESERVE_S = 0.5  # a call must end so long before Lambda ends the invocation, so that the answer can be sent

REQUEST_S_MAX = 9.0  # CLIENT_CONFIG's three attempts (1 s to connect, 2 s to answer), without botocore's pauses

CLIENT_CONFIG = Config(
    connect_timeout=1,  # seconds; DynamoDB answers in milliseconds, and botocore's default is 60 s
    read_timeout=2,
    retries={"total_max_attempts": 3, "mode": "standard"},
    max_pool_connections=50,
    parameter_validation=False,  # saves 50 us a call; Tally's code builds every input
    user_agent="tally",  # saves 50 us a call, in which botocore would compose a user agent
)


class StoreMeter:
    """Counts the requests that botocore sends for this process, and sums up the times until their answers. Each answer
    with status 200 corrects the clock of the process (clock.py)."""

    attempts = 0
    elapsed_s = 0.0

    def attach(self, client: DynamoDBClient) -> None:
        """Counts the attempts of the client from now on."""
        client.meta.events.register("request-created.dynamodb", self._begin)
        client.meta.events.register("response-received.dynamodb", self._end)

    def _begin(self, request: Any, **_: Any) -> None:
        self.attempts += 1
        request.context["tally_began_s"] = time.monotonic(), time.time()

    def _end(self, context: dict[str, Any], response_dict: dict[str, Any] | None, **_: Any) -> None:
        began_s, sent_s = context["tally_began_s"]
        self.elapsed_s += time.monotonic() - began_s
        # An error may be about the clock: AWS refuses a signature whose time is five minutes off. When the machine then
        # sets its clock right, a correction by this error would be wrong.
        if response_dict and response_dict["status_code"] == HTTPStatus.OK:
            CLOCK.correct_from(_date(response_dict), sent_s)


def _date(answer: dict[str, Any]) -> str:
    return str(answer["headers"].get("date", ""))


STORE_METER = StoreMeter()
"""The meter of all clients that `dynamodb_client` makes."""


def reseed_after_restore() -> None:
    """In the Lambda runtime, makes each environment that SnapStart restores seed `random`, and correct its own clock.

    Restored environments share the snapshot's state of `random`, from which botocore takes the pauses between its
    retries. So without new seeds, environments that were throttled together would retry together. (Tally's own retries
    use SystemRandom.) The snapshot's correction of the clock is of another machine.
    """
    with suppress(ImportError):
        from snapshot_restore_py import register_after_restore  # type: ignore[import-untyped]

        register_after_restore(random.seed)
        register_after_restore(CLOCK.forget)


reseed_after_restore()


def dynamodb_client(**overrides: Any) -> DynamoDBClient:
    """Makes the client that all code uses. Make it once: this takes 3 ms or more."""
    with _gc_paused():
        client: DynamoDBClient = boto3.client("dynamodb", config=CLIENT_CONFIG, **overrides)
    STORE_METER.attach(client)
    return client


def aws_client(service: str, *, read_timeout_s: int, attempts: int) -> Any:
    """Makes the client of another service. Callers make it when they first need it, because it takes 50 ms."""
    retries: Any = {"total_max_attempts": attempts, "mode": "standard"}
    config = Config(connect_timeout=1, read_timeout=read_timeout_s, retries=retries)
    return boto3.client(service, config=config)  # type: ignore[call-overload]


@dataclass(frozen=True, eq=False)
class Store:
    """The state of one process. Tally makes one Store at cold start, and all calls and threads share it."""

    client: DynamoDBClient
    settings: Settings
    spread: Spread = field(default_factory=Spread)
    breaker: Breaker = field(default_factory=Breaker)
    idempotency_layers: dict[str, Any] = field(default_factory=dict)
    """Powertools' layers for the receipts, by the prefix of their keys (counting/receipts.py)."""
    secret_cache: dict[str, str] = field(default_factory=dict)
    """The secrets that this process has read, by name (counting/pseudonyms.py)."""
    limit_cache: dict[tuple[str, str], Any] = field(default_factory=dict)
    """By counter and id, the limits that this process read last (counting/limits.py)."""
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    """The clock and the sleep of retries. A simulation replaces both (bench/hot_key.py)."""


@dataclass(frozen=True, eq=False)
class Call:
    """One call of one operation. `nonce`: a random value that tells the items that this call wrote from all others."""

    store: Store
    caller: str | None = None
    """The user, percent-encoded (fields.user); None for anonymous callers."""
    deadline_s: float = field(default_factory=lambda: time.monotonic() + CALL_TIME_DEFAULT_S)
    """When the call must have ended, on the store's clock. The default is for a store with time.monotonic()."""
    nonce: str = field(default_factory=partial(secrets.token_urlsafe, 9))
    counters: Mapping[str, Counter] = field(default_factory=dict)
    """The declared counters by name."""
    pages: Pages = DROP_NOTHING
    """Which parts of a page's address do not say what the page shows: the canonical URL leaves them out."""

    def retries(self, since_s: float | None = None, **bounds: Any) -> Retries:
        """Returns the retries of one change, within the deadline of this call.

        `since_s`: when the first attempt began, on the store's clock; None: now. `bounds` are fields of Retries.
        """
        return Retries(self.deadline_s, since_s=since_s, sleep=self.store.sleep, clock=self.store.clock, **bounds)


def map_in_threads(function: Callable[[T], R], things: Sequence[T]) -> list[R]:
    """Calls `function` with each thing, WRITER_THREADS at once, and returns the results in order.

    Raises the first error in the order of the things."""
    if len(things) < 2:
        return list(map(function, things))
    with ThreadPoolExecutor(WRITER_THREADS) as writers:
        return list(writers.map(function, things))
