"""The examples that move money, killed at each of their lines: what was charged is what was sold or paid back, and what
a model was paid for is what its team is charged.

A run is a process. After its death, nothing of it reaches Tally, the payment provider or the model any more. Most runs
are threads that end at a line; those of the last tests are processes that SIGKILL ends at a request to the store.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import random
import signal
import sys
import threading
import time
from collections import Counter as Sums
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import counters
from tally import client
from tally.client import Tally
from tally.counter import Counter
from tally.counting import expired_holds, hold_items
from tally.dev.base.engine import Engine
from tally.dynamo import queries
from tally.dynamo.client import Store
from tally.errors import LimitReachedError
from tests.integration.conftest import Invoke
from tests.integration.test_client import FakeLambda, declared_in_limits, example
from tests.sync_wire import SyncWire
from tests.tiers import in_long

CASES = [(0, 12), *in_long([(1, 200)])]  # a seed, and how many orders or requests
LINES_MAX = 16  # a run has about so many
FORK = multiprocessing.get_context("fork")
Act = Callable[[], object]


class Died(BaseException):
    """The process is gone. No code catches it."""


class ModelError(Exception):
    """The model does not answer."""


class Clock:
    """Wall time that only the test moves."""

    def __init__(self) -> None:
        self.now_s = float(int(time.time()))

    def __call__(self) -> float:
        return self.now_s


@dataclass
class Processes:
    """Runs of one example, and what they call."""

    module: ModuleType
    clock: Clock
    chance: random.Random
    somebody: Act = lambda: None
    """What others do with the same counter between lines and runs."""
    killed: set[int] = field(default_factory=set)
    """The lines at which runs died: a run dies at each line at which no run has died."""
    dead: set[int] = field(default_factory=set)
    """The threads of processes that are gone."""

    def called(self) -> None:
        """Something outside was called. Raises Died for a process that is gone: `finally` would run there."""
        if threading.get_ident() in self.dead:
            raise Died

    def die(self) -> None:
        """The process that runs this is gone."""
        self.dead.add(threading.get_ident())
        raise Died

    def run(self, given: dict[str, Any], at: dict[int, Act]) -> dict[str, Any] | None:
        """The answer of one process; None if it ended without one. `at`: what happens at its n-th lines."""
        done: list[dict[str, Any]] = []
        numbers = itertools.count()

        def trace(frame: Any, event: str, _: object) -> Any:
            if frame.f_code.co_filename != self.module.__file__:
                return None
            if event == "line" and threading.get_ident() not in self.dead:
                act = at.get(next(numbers), lambda: None)
                if act == self.die or frame.f_lineno not in self.killed:
                    self.killed.add(frame.f_lineno)
                    self.die()
                act()
            return trace

        def process() -> None:
            sys.settrace(trace)
            with suppress(Died, ModelError):
                done.append(self.module.handler(given, None))
            sys.settrace(None)
            self.dead.discard(threading.get_ident())

        thread = threading.Thread(target=process)
        thread.start()
        thread.join()
        return done[0] if done else None

    def lines(self) -> set[int]:
        """The lines of the handler, at each of which a process can die."""
        code = self.module.handler.__code__
        return {line for _, _, line in code.co_lines() if line} - {code.co_firstlineno}

    def handle(self, given: dict[str, Any]) -> dict[str, Any]:
        """Run it until it answers. Runs die, or stand still while time passes and another run of the same begins."""

        def meanwhile() -> None:
            self._pass()
            self.run(given, {self.chance.randrange(LINES_MAX): self.die} if self.chance.random() < 0.4 else {})
            self._pass()

        for _ in range(self.chance.randint(1, 3)):
            self.run(given, {self.chance.randrange(LINES_MAX): act for act in (meanwhile, self.die)})
            self._pass()
        while True:
            answer = self.run(given, {})
            if answer is not None:
                return answer

    def _pass(self) -> None:
        self.clock.now_s += self.chance.choice((0, 60, 1000))
        self.somebody()


@dataclass
class Provider:
    """What is paid for each order, once however often it is asked for. `declines`: how many cards of ten."""

    processes: Processes
    declines: int = 0
    paid: dict[str, int] = field(default_factory=dict)
    charged: Sums[str] = field(default_factory=Sums)
    refunded: Sums[str] = field(default_factory=Sums)

    def charge(self, order: dict[str, Any]) -> bool:
        self.processes.called()
        if order["order_id"] not in self.paid:
            if self.processes.chance.randrange(10) < self.declines:
                return False
            self.paid[order["order_id"]] = order["amount"]
            self.charged[order["order_id"]] += order["amount"]
        self.processes.called()
        return True

    def refund(self, order: dict[str, Any]) -> None:
        self.processes.called()
        self.refunded[order["order_id"]] += self.paid.pop(order["order_id"], 0)


@dataclass
class Model:
    """A model that answers a request once, whoever asks again, and fails now and then."""

    processes: Processes
    answers: dict[str, dict[str, Any]] = field(default_factory=dict)

    def kept_answer(self, request: dict[str, Any]) -> dict[str, Any] | None:
        self.processes.called()
        return self.answers.get(request["id"])

    def complete(self, request: dict[str, Any]) -> dict[str, Any]:
        self.processes.called()
        if self.processes.chance.random() < 0.3:
            raise ModelError
        self.processes.clock.now_s += self.processes.chance.choice((1, 1, 50, 300))
        return self.answers.setdefault(request["id"], {"text": "x", "tokens": self.processes.chance.randint(1, 150)})


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(time, "time", made)
    return made


@dataclass
class Shop:
    """An example beside its Tally."""

    processes: Processes
    tally: Tally
    others: Tally
    invoke: Invoke

    def committed(self, counter: str, id_: str) -> list[int]:
        """What the holds of an id committed, as their records say."""
        store = self.invoke.store
        expired_holds.sweep(store, counters.COUNTERS, store.clock() + 60)
        partition = hold_items.settled_key(f"{counter}/{id_}", "")["PK"]["S"]
        rows = queries.partition_items(
            store, store.settings.ledger_table, partition, queries.SORT_KEY_MIN, queries.SORT_KEY_MAX
        )
        return [int(row["used"]["N"]) for row in rows if row["state"] == {"S": hold_items.COMMITTED}]


@pytest.fixture
def shop(
    request: pytest.FixtureRequest, invoke: Invoke, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str, int], Shop]:
    """Opens a shop with the example of this name, for a seed."""
    monkeypatch.setattr(client, "PAUSE_FIRST_S", 0.001)

    def open_(name: str, seed: int) -> Shop:
        functions = {each: each for each in client.FUNCTIONS}
        fake = FakeLambda(invoke)
        others = Tally(functions, caller="others", lambda_client=FakeLambda(invoke))
        tally = Tally(functions, caller=name, lambda_client=fake)
        processes = Processes(example(name, tally, monkeypatch), clock, random.Random(seed))

        def alive(**sent: Any) -> Any:
            processes.called()
            return FakeLambda.invoke(fake, **sent)

        monkeypatch.setattr(fake, "invoke", alive)
        return Shop(processes, tally, others, invoke)

    return open_


@pytest.mark.parametrize(("seed", "runs"), CASES)
def test_what_was_charged_is_sold_or_paid_back(
    shop: Callable[[str, int], Shop], seed: int, runs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others buy and return the same item, of which there is little."""
    made = shop("checkout", seed)
    processes, chance = made.processes, made.processes.chance
    outcomes = Sums[str]()
    for number in range(runs):
        provider = Provider(processes, declines=chance.choice((0, 0, 5)))
        monkeypatch.setattr(processes.module, "charge", provider.charge)
        monkeypatch.setattr(processes.module, "refund", provider.refund)
        item, bought = ("stock", f"mug-{seed}-{number}"), Sums[str]()
        made.others.increment(*item, amount=2)

        def others(item: tuple[str, str] = item, bought: Sums[str] = bought) -> None:
            amount = 2 if chance.random() < 0.6 and not bought["by others"] else -bought["by others"]
            with suppress(LimitReachedError):
                made.others.increment(*item, amount=-amount)
                bought["by others"] += amount

        processes.somebody = others
        if number % 5 == 0:
            others()
        order = {"order_id": f"o-{seed}-{number}", "item_id": item[1], "amount": 2}
        answer = processes.handle(order)
        processes.clock.now_s += 2000
        sold = sum(made.committed(*item))
        key = order["order_id"]
        assert provider.charged[key] == sold + provider.refunded[key], (number, answer)
        assert answer["sold"] == (sold == 2)
        assert made.tally.get_counter(*item)["value"] == 2 - bought["by others"] - sold
        outcomes["sold" if sold else "paid back" if provider.refunded[key] else "not sold"] += 1
    assert runs < 200 or min(outcomes[what] for what in ("sold", "paid back", "not sold")) > 0
    assert runs < 200 or processes.killed >= processes.lines()


@pytest.mark.parametrize(("seed", "runs"), CASES)
def test_what_a_model_was_paid_for_is_charged(
    shop: Callable[[str, int], Shop], seed: int, runs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others use up the budget of the team. A call may use more than was held, and take longer than its hold lasts."""
    monkeypatch.setitem(counters.COUNTERS, "tokens", replace(declared_in_limits("TOKENS"), ceiling=200, period=None))
    made = shop("gateway", seed)
    processes, chance = made.processes, made.processes.chance
    statuses: Sums[int] = Sums()
    for number in range(runs):
        model = Model(processes)
        monkeypatch.setattr(processes.module, "complete", model.complete)
        monkeypatch.setattr(processes.module, "kept_answer", model.kept_answer)
        team, used = ("tokens", f"team-{seed}-{number}"), Sums[str]()

        def others(team: tuple[str, str] = team, used: Sums[str] = used) -> None:
            amount = 150 if chance.random() < 0.6 and not used["by others"] else -used["by others"]
            with suppress(LimitReachedError):
                made.others.increment(*team, amount=amount)
                used["by others"] += amount

        processes.somebody = others
        if number % 5 == 0:
            others()
        given = {"team": team[1], "id": f"r-{seed}-{number}", "prompt": "x" * 149, "max_tokens": 50}
        answer = processes.handle(given)
        processes.clock.now_s += 2000
        spent = sum(kept["tokens"] for kept in model.answers.values())
        assert sum(made.committed(*team)) == spent, (number, answer)
        assert made.tally.get_counter(*team)["value"] == used["by others"] + spent
        assert answer["status"] == (200 if spent else 429)
        statuses[answer["status"]] += 1
    assert runs < 200 or statuses[200] > statuses[429] > 0
    assert runs < 200 or processes.killed >= processes.lines()


@dataclass
class Gateway:
    """The gateway beside a budget of its own, of a team without a period and without debt. Its request may use 101."""

    shop: Shop
    team: tuple[str, str] = ("tokens", "team")
    request: dict[str, Any] = field(
        default_factory=lambda: {"team": "team", "id": "r-1", "prompt": "x" * 149, "max_tokens": 51}
    )

    @property
    def charged(self) -> list[int]:
        """What the request was charged; nothing else moved the budget of its team."""
        committed = self.shop.committed(*self.team)
        assert self.shop.tally.get_counter(*self.team)["value"] == sum(committed)
        return committed


@pytest.fixture
def gateway(shop: Callable[[str, int], Shop], monkeypatch: pytest.MonkeyPatch) -> Gateway:
    made = Counter("tokens", prefix="TEAM", sort_key="TOKENS", attribute="tokens", ceiling=120)
    monkeypatch.setitem(counters.COUNTERS, "tokens", made)
    return Gateway(shop("gateway", 0))


@pytest.mark.parametrize(("used", "charged"), [(115, 115), (130, 120)])
def test_a_hold_that_expires_while_its_call_is_charged_is_charged_what_fits(
    gateway: Gateway, used: int, charged: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was held goes back between the first commit, which is refused, and the second one."""
    made, commit = gateway.shop, Tally.commit_hold
    made.others.increment(*gateway.team, amount=10)

    def commits(tally: Tally, *hold: str, amount: int | None = None) -> Any:
        if amount is None:
            made.processes.clock.now_s += 1000
            made.others.increment(*gateway.team, amount=-10)
        return commit(tally, *hold, amount=amount)

    monkeypatch.setattr(Tally, "commit_hold", commits)
    monkeypatch.setattr(made.processes.module, "complete", lambda request: {"text": "x", "tokens": used})
    assert made.processes.module.handler(gateway.request, None)["status"] == 200
    assert gateway.charged == [charged]


def test_room_that_others_take_while_a_late_call_is_charged_is_not_charged(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others take more after each refusal that says how much fits."""
    made, commit = gateway.shop, Tally.commit_hold

    def commits(tally: Tally, *hold: str, amount: int | None = None) -> Any:
        try:
            return commit(tally, *hold, amount=amount)
        except LimitReachedError as refused:
            if refused.left:
                made.others.increment(*gateway.team, amount=min(50, refused.left))
            raise

    def slow(request: dict[str, Any]) -> dict[str, Any]:
        made.processes.clock.now_s += 1000
        return {"text": "x", "tokens": 130}

    monkeypatch.setattr(Tally, "commit_hold", commits)
    monkeypatch.setattr(made.processes.module, "complete", slow)
    assert made.processes.module.handler(gateway.request, None)["status"] == 200
    assert (made.committed(*gateway.team), made.tally.get_counter(*gateway.team)["value"]) == ([0], 120)


def test_two_runs_whose_model_answers_otherwise_are_charged_once(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second run asks the model while the first one waits for it."""
    module, tokens = gateway.shop.processes.module, iter((12, 15))

    def complete(request: dict[str, Any]) -> dict[str, Any]:
        used = next(tokens)
        if used == 12:
            assert module.handler(request, None)["status"] == 200
        return {"text": "x", "tokens": used}

    monkeypatch.setattr(module, "complete", complete)
    assert module.handler(gateway.request, None)["status"] == 200
    assert gateway.charged == [15]


def test_an_order_whose_hold_is_voided_meanwhile_is_not_sold(
    shop: Callable[[str, int], Shop], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another run sells it, and somebody takes that back, before this run commits. It pays nothing back: whoever takes
    a sale back has to."""
    made = shop("checkout", 0)
    module, provider = made.processes.module, Provider(made.processes)
    monkeypatch.setattr(module, "refund", provider.refund)
    made.others.increment("stock", "mug", amount=2)
    order = {"order_id": "o-1", "item_id": "mug", "amount": 2}
    void_hold, charge = made.others.void_hold, iter((True, False))

    def overtaken(order: dict[str, Any]) -> bool:
        if next(charge):
            assert module.handler(order, None) == {"sold": True}
            held = made.tally.hold("stock", "mug", 2, module.PAY_WITHIN_S, idempotency_key="o-1")
            void_hold("stock", "mug", held["hold"])
        return provider.charge(order)

    monkeypatch.setattr(module, "charge", overtaken)
    assert module.handler(order, None) == {"sold": False}
    assert (made.committed("stock", "mug"), provider.refunded["o-1"]) == ([], 0)
    assert made.tally.get_counter("stock", "mug")["value"] == 2


def test_a_run_that_gives_up_after_another_has_sold_pays_nothing_back(
    shop: Callable[[str, int], Shop], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The items come back between the refusal of the one run and its last word."""
    made = shop("checkout", 0)
    module, provider = made.processes.module, Provider(made.processes)
    monkeypatch.setattr(module, "refund", provider.refund)
    give_up, item = module.give_up, ("stock", "mug")
    order = {"order_id": "o-1", "item_id": "mug", "amount": 2}
    made.others.increment(*item, amount=2)

    def slow_charge(order: dict[str, Any]) -> bool:
        made.processes.clock.now_s += 1000
        made.others.increment(*item, amount=-2)
        return provider.charge(order)

    def meanwhile(order: dict[str, Any], hold: str) -> Any:
        made.others.increment(*item, amount=2)
        assert module.handler(order, None) == {"sold": True}
        return give_up(order, hold)

    charges = iter((slow_charge, provider.charge))
    monkeypatch.setattr(module, "charge", lambda order: next(charges)(order))
    monkeypatch.setattr(module, "give_up", meanwhile)
    assert module.handler(order, None) == {"sold": True}
    assert (provider.charged["o-1"], provider.refunded["o-1"], made.committed(*item)) == (2, 0, [2])


class DeadlyWire(SyncWire):
    """SIGKILL ends this process at its n-th request: before it is sent, or once its answer is there."""

    def __init__(self, port: int, at: int, *, answered: bool) -> None:
        super().__init__(port)
        self.at, self.answered = at, answered

    def _call(self, operation: str, parameters: dict[str, Any]) -> dict[str, Any]:
        last = self.calls + 1 == self.at
        try:
            return {} if last and not self.answered else super()._call(operation, parameters)
        finally:
            if last:
                os.kill(os.getpid(), signal.SIGKILL)


@dataclass
class Deaths:
    """Runs of one example, each of which SIGKILL ends at another request, and what comes after it."""

    shop: Shop
    engine: Engine

    def ends(self, given: dict[str, Any], at: int, *, answered: bool) -> bool:
        """Whether the run of a process of its own was ended by SIGKILL."""
        process = FORK.Process(target=self._run, args=(given, at, answered), daemon=True)
        process.start()
        process.join()
        assert process.exitcode in (0, -signal.SIGKILL)
        return process.exitcode != 0

    def _run(self, given: dict[str, Any], at: int, answered: bool) -> None:
        store = Store(DeadlyWire(self.engine.port, at, answered=answered), self.shop.invoke.store.settings)  # type: ignore[arg-type]
        module, functions = self.shop.processes.module, {each: each for each in client.FUNCTIONS}
        module.tally = Tally(functions, caller=module.__name__, lambda_client=FakeLambda(Invoke(store)))  # type: ignore[attr-defined]
        module.handler(given, None)

    def each(self, given: Callable[[str], dict[str, Any]], others: Callable[[str], object]) -> Iterator[str]:
        """The name of each run that ended, once the next run answered. Between the two, nothing happens, or the hold
        expires, or it expires and `others` take what it held."""
        module = self.shop.processes.module
        for at in itertools.count(1):
            for answered, later in itertools.product((False, True), ("at once", "expired", "taken")):
                name = f"{at}-{answered}-{later}".replace(" ", "-")
                if not self.ends(given(name), at, answered=answered):
                    return
                self.shop.processes.clock.now_s += 0 if later == "at once" else 1000
                if later == "taken":
                    with suppress(LimitReachedError):
                        others(name)
                assert module.handler(given(name), None)
                self.shop.processes.clock.now_s += 2000
                yield name


def test_a_sale_that_sigkill_ends_is_sold_or_paid_back(
    shop: Callable[[str, int], Shop], engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, book = shop("checkout", 0), tmp_path / "provider.jsonl"
    book.touch()

    def paid(order: dict[str, Any]) -> int:
        return sum(amount for id_, amount in map(json.loads, book.read_text().splitlines()) if id_ == order["order_id"])

    def pay(order: dict[str, Any], amount: int) -> bool:
        with book.open("a") as lines:
            lines.write(json.dumps([order["order_id"], amount - paid(order)]) + "\n")
        return True

    def order(name: str) -> dict[str, Any]:
        if name not in stocked:
            stocked.add(name)
            made.others.increment("stock", name, amount=2)
        return {"order_id": name, "item_id": name, "amount": 2}

    stocked = set[str]()
    monkeypatch.setattr(made.processes.module, "charge", lambda order: pay(order, 2))
    monkeypatch.setattr(made.processes.module, "refund", lambda order: pay(order, 0))
    outcomes = Sums[int]()
    for name in Deaths(made, engine).each(order, lambda name: made.others.increment("stock", name, amount=-2)):
        sold = sum(made.committed("stock", name))
        assert paid(order(name)) == sold, name
        outcomes[sold] += 1
    assert outcomes[2] > outcomes[0] > 0


def test_a_call_that_sigkill_ends_is_charged_once(
    shop: Callable[[str, int], Shop], engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget = Counter("tokens", prefix="TEAM", sort_key="TOKENS", attribute="tokens", ceiling=200, debt=100)
    monkeypatch.setitem(counters.COUNTERS, "tokens", budget)
    made = shop("gateway", 0)

    def kept(request: dict[str, Any]) -> dict[str, Any] | None:
        answer = tmp_path / request["id"]
        return json.loads(answer.read_text()) if answer.exists() else None

    def complete(request: dict[str, Any]) -> dict[str, Any]:
        (tmp_path / request["id"]).write_text('{"text": "x", "tokens": 90}')
        return {"text": "x", "tokens": 90}

    def request(name: str) -> dict[str, Any]:
        return {"team": name, "id": name, "prompt": "x" * 149, "max_tokens": 50}

    monkeypatch.setattr(made.processes.module, "complete", complete)
    monkeypatch.setattr(made.processes.module, "kept_answer", kept)
    charged = Sums[int]()
    for name in Deaths(made, engine).each(request, lambda name: made.others.increment("tokens", name, amount=150)):
        assert made.committed("tokens", name) == ([90] if kept(request(name)) else []), name
        charged[sum(made.committed("tokens", name))] += 1
    assert charged[90] > charged[0] > 0
