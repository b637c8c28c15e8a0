"""Makes a world for each test. The SDK's retries are real; only its pauses are shorter."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import boto3
import pytest
from botocore.config import Config
from botocore.retries.standard import ExponentialBackoff

from tally.counter import Counter
from tally.dev.base.engine import Engine
from tally.dynamo.client import CLIENT_CONFIG, Store, dynamodb_client
from tally.dynamo.contention import Spread
from tally.maintenance.reconcile import Reconciler
from tally.settings import Settings
from tests.faults import FaultProxy
from tests.invariants.counting import Counting
from tests.invariants.deployment import Deployment, deployed
from tests.invariants.simulation import Clock
from tests.invariants.streaming import EngineStreams, StreamWorld
from tests.invariants.world import World
from tests.sync_wire import SyncWire

HASTY_READ_S = 1.0  # read time-out where a test waits for it
SDK_PAUSE_S, SDK_THROTTLE_PAUSE_S = 0.001, 0.01  # instead of 25 ms and 1 s, doubled for each retry


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ExponentialBackoff._DEFAULT_BACKOFF_CONFIG, "throttling_base_scale", SDK_THROTTLE_PAUSE_S)
    monkeypatch.setitem(
        ExponentialBackoff._SERVICE_BACKOFF_CONFIG, "dynamodb", {"non_throttling_base_scale": SDK_PAUSE_S}
    )


@pytest.fixture(scope="session")
def streamed() -> tuple[str, ...]:
    """The streams show which children were written alone (`World.spilled_children`)."""
    return ("counts", "receipts")


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing spills, so that retries and shards are tested."""
    monkeypatch.setattr(Counter, "may_spill", property(lambda _: False))


@pytest.fixture
def proxy(engine: Engine) -> Iterator[FaultProxy]:
    with FaultProxy(engine.endpoint) as running:
        yield running


@pytest.fixture
def make_world(engine: Engine, proxy: FaultProxy, settings: Settings) -> Iterator[Callable[..., World]]:
    """Make a world. `hasty`: its client has a short read timeout. `spread`: the spread to use."""
    clients, raw = [], SyncWire(engine.port)

    def make(*, hasty: bool = False, spread: Spread | None = None) -> World:
        config = CLIENT_CONFIG.merge(Config(read_timeout=HASTY_READ_S)) if hasty else CLIENT_CONFIG
        clients.append(boto3.client("dynamodb", config=config, endpoint_url=proxy.endpoint))
        return World(Store(clients[-1], settings, spread or Spread()), raw, proxy=proxy)

    yield make
    for each in (*clients, raw):
        each.close()


@pytest.fixture
def world(make_world: Callable[..., World]) -> World:
    return make_world()


@pytest.fixture
def stream(store: Store) -> StreamWorld:
    return StreamWorld(store, store.client)


@pytest.fixture
def streams(world: World) -> EngineStreams:
    """Both consumers, over the engine's own streams of the world's tables."""
    return EngineStreams(replace(world.store, client=world.raw), world.raw)


@pytest.fixture
def lossy(store: Store, proxy: FaultProxy) -> StreamWorld:
    """The requests of its handlers go through the proxy, without the SDK's tokens."""
    proxy.strip_tokens = True
    return StreamWorld(replace(store, client=dynamodb_client(endpoint_url=proxy.endpoint)), store.client)


@pytest.fixture
def judged(world: World, engine: Engine) -> Iterator[Deployment]:
    """A deployment whose minutes are judged. Its writes go through the proxy of `world`."""
    with deployed(engine=engine, store=world.store) as made:
        yield made


@pytest.fixture
def reconciler(world: Deployment) -> Reconciler:
    """The command, in a test file whose world is a deployment."""
    return world.reconciler()


@pytest.fixture
def counting(world: World) -> Counting:
    return Counting(world)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Stops the clock until the test lets time pass."""
    made = Clock(int(time.time()))
    monkeypatch.setattr(time, "time", made)
    return made
