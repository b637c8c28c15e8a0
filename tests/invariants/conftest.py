"""A world for each test. The SDK's retries are real; only its pauses are shortened."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import boto3
import pytest
from botocore.config import Config
from botocore.retries.standard import ExponentialBackoff

from faults import FaultProxy
from local.base.engine import Engine
from tally.counter import Counter
from tally.dynamo.client import CLIENT_CONFIG, Store, dynamodb_client
from tally.dynamo.contention import Spread
from tally.settings import Settings
from tests.invariants.counting import Clock, Counting
from tests.invariants.world import World

HASTY_READ_S = 0.4  # read time-out where a test waits for it; 2 s otherwise, as deployed
SDK_PAUSE_S, SDK_THROTTLE_PAUSE_S = 0.001, 0.01  # instead of 25 ms and 1 s, doubled for each retry


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ExponentialBackoff._DEFAULT_BACKOFF_CONFIG, "throttling_base_scale", SDK_THROTTLE_PAUSE_S)
    monkeypatch.setitem(
        ExponentialBackoff._SERVICE_BACKOFF_CONFIG, "dynamodb", {"non_throttling_base_scale": SDK_PAUSE_S}
    )


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing spills: what is tested is what retries and shards do."""
    monkeypatch.setattr(Counter, "spills", property(lambda _: False))


@pytest.fixture
def proxy(engine: Engine) -> Iterator[FaultProxy]:
    with FaultProxy(engine.endpoint) as running:
        yield running


@pytest.fixture
def make_world(engine: Engine, proxy: FaultProxy, settings: Settings) -> Iterator[Callable[..., World]]:
    """Make a world: `hasty` gives up reading soon, `spread` is the one to use."""
    clients = []

    def make(*, hasty: bool = False, spread: Spread | None = None) -> World:
        config = CLIENT_CONFIG.merge(Config(read_timeout=HASTY_READ_S)) if hasty else CLIENT_CONFIG
        client = boto3.client("dynamodb", config=config, endpoint_url=proxy.endpoint)
        raw = dynamodb_client(endpoint_url=engine.endpoint)
        clients.extend((client, raw))
        return World(Store(client, settings, spread or Spread()), proxy, raw)

    yield make
    for client in clients:
        client.close()


@pytest.fixture
def world(make_world: Callable[..., World]) -> World:
    return make_world()


@pytest.fixture
def counting(world: World) -> Counting:
    return Counting(world)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock that the test moves."""
    made = Clock()
    made.install(monkeypatch)
    return made
