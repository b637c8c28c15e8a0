"""Makes a World for each test: tables in the embedded engine, a proxy that injects faults, and two clients.
The SDK retries as it does on AWS, after shorter pauses."""

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

HASTY_READ_S = 1.0  # read time-out of a client for tests that wait until a read times out
SDK_PAUSE_S, SDK_THROTTLE_PAUSE_S = 0.001, 0.01  # instead of 25 ms and 1 s; each retry doubles the pause


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ExponentialBackoff._DEFAULT_BACKOFF_CONFIG, "throttling_base_scale", SDK_THROTTLE_PAUSE_S)
    monkeypatch.setitem(
        ExponentialBackoff._SERVICE_BACKOFF_CONFIG, "dynamodb", {"non_throttling_base_scale": SDK_PAUSE_S}
    )


@pytest.fixture(scope="session")
def streamed() -> tuple[str, ...]:
    """The tables that have streams. The stream of `counts` shows which children spilled (`World.spilled_children`)."""
    return ("counts", "receipts")


@pytest.fixture
def no_spilling(monkeypatch: pytest.MonkeyPatch) -> None:
    """No change spills, so that the test reaches retries and shards."""
    monkeypatch.setattr(Counter, "may_spill", property(lambda _: False))


@pytest.fixture
def proxy(engine: Engine) -> Iterator[FaultProxy]:
    with FaultProxy(engine.endpoint) as running:
        yield running


@pytest.fixture
def make_world(engine: Engine, proxy: FaultProxy, settings: Settings) -> Iterator[Callable[..., World]]:
    """Makes worlds. `hasty`: the client of the world has a short read time-out. `spread`: the spread of the store."""
    clients, raw = [], SyncWire(engine.port)

    def make(*, hasty: bool = False, spread: Spread | None = None) -> World:
        config = CLIENT_CONFIG.merge(Config(read_timeout=HASTY_READ_S)) if hasty else CLIENT_CONFIG
        clients.append(boto3.client("dynamodb", config=config, endpoint_url=proxy.endpoint))
        return World(Store(clients[-1], settings, spread or Spread()), raw, proxy=proxy)

    yield make
    for client in (*clients, raw):
        client.close()


@pytest.fixture
def world(make_world: Callable[..., World]) -> World:
    """A World. The proxy injects no fault until a test gives it a plan."""
    return make_world()


@pytest.fixture
def stream(store: Store) -> StreamWorld:
    """A world of consumers, which get made-up records. No request goes through a proxy."""
    return StreamWorld(store, store.client)


@pytest.fixture
def streams(world: World) -> EngineStreams:
    """The rollup and the bookkeeper, which read the streams that the engine has for the tables of `world`."""
    return EngineStreams(replace(world.store, client=world.raw), world.raw)


@pytest.fixture
def proxied_stream(store: Store, proxy: FaultProxy) -> StreamWorld:
    """A world of consumers whose requests go through the proxy. The proxy removes the SDK's idempotency tokens, so that
    only the receipt protects a change."""
    proxy.strip_tokens = True
    return StreamWorld(replace(store, client=dynamodb_client(endpoint_url=proxy.endpoint)), store.client)


@pytest.fixture
def deployment(world: World, engine: Engine) -> Iterator[Deployment]:
    """A deployment whose minutes are judged, and whose writes go through the proxy of `world`."""
    with deployed(engine=engine, store=world.store) as running:
        yield running


@pytest.fixture
def reconciler(world: Deployment) -> Reconciler:
    """Repairs tallies, as `tally repair` does. Only for a test file that overrides `world` with a deployment."""
    return world.reconciler()


@pytest.fixture
def counting(world: World) -> Counting:
    """Changes counters and holds of `world` as the handlers do."""
    return Counting(world)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Stops the clock until the test lets time pass."""
    stopped = Clock(int(time.time()))
    monkeypatch.setattr(time, "time", stopped)
    return stopped
