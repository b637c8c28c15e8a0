"""Kills runs of docs/examples/checkout.py and docs/examples/gateway.py at each of their lines.

The checkout must sell or refund what it charged. The gateway must charge a team for the tokens that the
model has used.

Most runs are threads that die at a line. A dead thread calls neither Tally nor the payment provider nor the model.
The last two tests run processes, which SIGKILL ends at a request to the store.
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
from tests.integration.test_client import PROMPT, FakeLambda, counter_of_limits_page, load_example
from tests.sync_wire import SyncWire
from tests.tiers import marked_long

CASES = [(0, 12), *marked_long([(1, 200)])]  # a seed, and the number of orders or requests
LINES_MAX = 16  # a run dies before one of its first 16 lines; most runs execute about so many lines
FORK = multiprocessing.get_context("fork")
Action = Callable[[], object]


class Died(BaseException):
    """The death of a process, which no code catches."""


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
    """Runs one example in threads, which act as processes, and may die at each line."""

    module: ModuleType
    clock: Clock
    chance: random.Random
    act_as_others: Action = lambda: None
    """Changes the same counter as other callers do, between two lines or between two runs."""
    killed_lines: set[int] = field(default_factory=set)
    """The lines at which runs died. A run dies at each line at which no earlier run has died."""
    dead_threads: set[int] = field(default_factory=set)
    """The threads of dead processes."""

    def check_alive(self) -> None:
        """Raises Died in a dead process, because its `finally` blocks still run. Each fake calls this first."""
        if threading.get_ident() in self.dead_threads:
            raise Died

    def die(self) -> None:
        """End the process that calls this."""
        self.dead_threads.add(threading.get_ident())
        raise Died

    def run(self, event: dict[str, Any], actions: dict[int, Action]) -> dict[str, Any] | None:
        """Runs the handler in a new process. Returns the answer, or None if the process died or the model failed.

        `actions`: what happens before the n-th line that the run executes, by n from 0.
        """
        answers: list[dict[str, Any]] = []
        line_numbers = itertools.count()

        def trace(frame: Any, kind: str, _: object) -> Any:
            if frame.f_code.co_filename != self.module.__file__:
                return None
            if kind == "line" and threading.get_ident() not in self.dead_threads:
                action = actions.get(next(line_numbers), lambda: None)
                if action == self.die or frame.f_lineno not in self.killed_lines:
                    self.killed_lines.add(frame.f_lineno)
                    self.die()
                action()
            return trace

        def process() -> None:
            sys.settrace(trace)
            with suppress(Died, ModelError):
                answers.append(self.module.handler(event, None))
            sys.settrace(None)
            self.dead_threads.discard(threading.get_ident())  # a later thread may get this number

        thread = threading.Thread(target=process)
        thread.start()
        thread.join()
        return answers[0] if answers else None

    def handler_lines(self) -> set[int]:
        """Returns the numbers of the handler's lines, at which a process can die."""
        code = self.module.handler.__code__
        return {line for _, _, line in code.co_lines() if line} - {code.co_firstlineno}

    def handle(self, event: dict[str, Any]) -> dict[str, Any]:
        """Runs the handler one to three times: each run pauses at a line for another run, and dies at a line. Then runs
        the handler until a run answers."""

        def run_another() -> None:
            self._pass_time()
            self.run(event, {self.chance.randrange(LINES_MAX): self.die} if self.chance.random() < 0.4 else {})
            self._pass_time()

        for _ in range(self.chance.randint(1, 3)):
            self.run(event, {self.chance.randrange(LINES_MAX): action for action in (run_another, self.die)})
            self._pass_time()
        while True:
            answer = self.run(event, {})
            if answer is not None:
                return answer

    def _pass_time(self) -> None:
        self.clock.now_s += self.chance.choice((0, 60, 1000))  # holds last 900 s (checkout) and 120 s (gateway)
        self.act_as_others()


@dataclass
class Provider:
    """A payment provider that charges each order once. `declines`: how many of ten cards it declines, on average.

    By order: `paid` is what the provider has now, `charged` and `refunded` are sums.
    """

    processes: Processes
    declines: int = 0
    paid: dict[str, int] = field(default_factory=dict)
    charged: Sums[str] = field(default_factory=Sums)
    refunded: Sums[str] = field(default_factory=Sums)

    def charge(self, order: dict[str, Any]) -> bool:
        self.processes.check_alive()
        if order["order_id"] not in self.paid:
            if self.processes.chance.randrange(10) < self.declines:
                return False
            self.paid[order["order_id"]] = order["amount"]
            self.charged[order["order_id"]] += order["amount"]
        return True

    def refund(self, order: dict[str, Any]) -> None:
        self.processes.check_alive()
        self.refunded[order["order_id"]] += self.paid.pop(order["order_id"], 0)


@dataclass
class Model:
    """A model that has one answer for each request, also for a retry, and sometimes fails. `answers`: by request id."""

    processes: Processes
    answers: dict[str, dict[str, Any]] = field(default_factory=dict)

    def kept_answer(self, request: dict[str, Any]) -> dict[str, Any] | None:
        self.processes.check_alive()
        return self.answers.get(request["id"])

    def complete(self, request: dict[str, Any]) -> dict[str, Any]:
        self.processes.check_alive()
        if self.processes.chance.random() < 0.3:
            raise ModelError
        self.processes.clock.now_s += self.processes.chance.choice((1, 1, 50, 300))  # a hold lasts 120 s
        return self.answers.setdefault(request["id"], {"text": "x", "tokens": self.processes.chance.randint(1, 150)})


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    test_clock = Clock()
    monkeypatch.setattr(time, "time", test_clock)
    return test_clock


@dataclass
class Trial:
    """One example, with fakes of what it calls. `tally`: the example's client. `others`: other callers' client."""

    processes: Processes
    tally: Tally
    others: Tally
    invoke: Invoke

    def committed_amounts(self, counter: str, id_: str) -> list[int]:
        """Releases expired holds, and returns the amounts of the committed holds of an id."""
        store = self.invoke.store
        expired_holds.sweep(store, counters.COUNTERS, store.clock() + 60)
        partition = hold_items.settled_key(f"{counter}/{id_}", "")["PK"]["S"]
        rows = queries.partition_items(
            store, store.settings.ledger_table, partition, queries.SORT_KEY_MIN, queries.SORT_KEY_MAX
        )
        return [int(row["used"]["N"]) for row in rows if row["state"] == {"S": hold_items.COMMITTED}]


@dataclass
class Others:
    """Other callers, who change one number by `amount`, or take this change back, at random. `changed`: by how much
    they have changed the number."""

    tally: Tally
    chance: random.Random
    number: tuple[str, str]
    amount: int
    changed: int = 0

    def act(self) -> None:
        amount = self.amount if self.chance.random() < 0.6 and not self.changed else -self.changed
        with suppress(LimitReachedError):
            self.tally.increment(*self.number, amount=amount)
            self.changed += amount


@pytest.fixture
def make_trial(
    request: pytest.FixtureRequest, invoke: Invoke, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str, int], Trial]:
    """Returns a function that makes the Trial of an example, by the example's name and a seed."""
    monkeypatch.setattr(client, "PAUSE_FIRST_S", 0.001)

    def make(name: str, seed: int) -> Trial:
        functions = {name: name for name in client.FUNCTIONS}
        fake = FakeLambda(invoke)
        others = Tally(functions, caller="others", lambda_client=FakeLambda(invoke))
        tally = Tally(functions, caller=name, lambda_client=fake)
        processes = Processes(load_example(name, tally, monkeypatch), clock, random.Random(seed))

        def invoke_if_alive(**request: Any) -> Any:
            processes.check_alive()
            return FakeLambda.invoke(fake, **request)

        monkeypatch.setattr(fake, "invoke", invoke_if_alive)
        return Trial(processes, tally, others, invoke)

    return make


@pytest.mark.parametrize(("seed", "orders"), CASES)
def test_every_charged_order_is_sold_or_refunded(
    make_trial: Callable[[str, int], Trial], seed: int, orders: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others buy both items or return them. The runs of 200 orders have every outcome, and die at every line
    of the handler."""
    trial = make_trial("checkout", seed)
    processes, chance = trial.processes, trial.processes.chance
    outcomes = Sums[str]()
    for number in range(orders):
        provider = Provider(processes, declines=chance.choice((0, 0, 5)))
        monkeypatch.setattr(processes.module, "charge", provider.charge)
        monkeypatch.setattr(processes.module, "refund", provider.refund)
        item = ("stock", f"mug-{seed}-{number}")
        trial.others.increment(*item, amount=2)
        others = Others(trial.others, chance, item, amount=-2)
        processes.act_as_others = others.act
        if number % 5 == 0:
            others.act()
        order = {"order_id": f"o-{seed}-{number}", "item_id": item[1], "amount": 2}
        answer = processes.handle(order)
        processes.clock.now_s += 2000
        sold = sum(trial.committed_amounts(*item))
        key = order["order_id"]
        assert provider.charged[key] == sold + provider.refunded[key], (number, answer)
        assert answer["sold"] == (sold == 2)
        assert trial.tally.get_counter(*item)["value"] == 2 + others.changed - sold
        outcomes["sold" if sold else "refunded" if provider.refunded[key] else "not sold"] += 1
    assert orders < 200 or min(outcomes[outcome] for outcome in ("sold", "refunded", "not sold")) > 0
    assert orders < 200 or processes.killed_lines >= processes.handler_lines()


@pytest.mark.parametrize(("seed", "requests"), CASES)
def test_a_team_is_charged_what_its_model_was_paid_for(
    make_trial: Callable[[str, int], Trial], seed: int, requests: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others use up the budget of the team, or give it back. A call may use more than it holds, and outlast its hold.
    200 requests are answered or refused, and their runs die at every line of the handler."""
    monkeypatch.setitem(
        counters.COUNTERS, "tokens", replace(counter_of_limits_page("TOKENS"), ceiling=200, period=None)
    )
    trial = make_trial("gateway", seed)
    processes, chance = trial.processes, trial.processes.chance
    statuses: Sums[int] = Sums()
    for number in range(requests):
        model = Model(processes)
        monkeypatch.setattr(processes.module, "complete", model.complete)
        monkeypatch.setattr(processes.module, "kept_answer", model.kept_answer)
        budget = ("tokens", f"team-{seed}-{number}")
        others = Others(trial.others, chance, budget, amount=150)
        processes.act_as_others = others.act
        if number % 5 == 0:
            others.act()
        request = {"team": budget[1], "id": f"r-{seed}-{number}", "prompt": PROMPT, "max_tokens": 50}
        answer = processes.handle(request)
        processes.clock.now_s += 2000
        spent = sum(answer["tokens"] for answer in model.answers.values())
        assert sum(trial.committed_amounts(*budget)) == spent, (number, answer)
        assert trial.tally.get_counter(*budget)["value"] == others.changed + spent
        assert answer["status"] == (200 if spent else 429)
        statuses[answer["status"]] += 1
    assert requests < 200 or statuses[200] > statuses[429] > 0
    assert requests < 200 or processes.killed_lines >= processes.handler_lines()


@dataclass
class Gateway:
    """The gateway, and a team's budget without a period and without debt. The request holds 101 tokens."""

    trial: Trial
    budget: tuple[str, str] = ("tokens", "team")
    request: dict[str, Any] = field(
        default_factory=lambda: {"team": "team", "id": "r-1", "prompt": PROMPT, "max_tokens": 51}  # and 50 of PROMPT
    )

    @property
    def charged(self) -> list[int]:
        """The amounts that the request was charged. Nothing else may have changed the team's budget."""
        committed = self.trial.committed_amounts(*self.budget)
        assert self.trial.tally.get_counter(*self.budget)["value"] == sum(committed)
        return committed


@pytest.fixture
def gateway(make_trial: Callable[[str, int], Trial], monkeypatch: pytest.MonkeyPatch) -> Gateway:
    counter = Counter("tokens", prefix="TEAM", sort_key="TOKENS", attribute="tokens", ceiling=120)
    monkeypatch.setitem(counters.COUNTERS, "tokens", counter)
    return Gateway(make_trial("gateway", 0))


@pytest.mark.parametrize(("used", "charged"), [(115, 115), (130, 120)])
def test_a_call_whose_hold_expires_before_its_commit_is_charged_what_fits(
    gateway: Gateway, used: int, charged: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The budget is 120, and others use 10, so the first commit is refused. Before the second commit, which is of the
    held amount, the hold expires, and others give the 10 back. So `charge_late` commits up to 120."""
    trial, commit = gateway.trial, Tally.commit_hold
    trial.others.increment(*gateway.budget, amount=10)

    def commit_hold(tally: Tally, *hold: str, amount: int | None = None) -> Any:
        if amount is None:
            trial.processes.clock.now_s += 1000
            trial.others.increment(*gateway.budget, amount=-10)
        return commit(tally, *hold, amount=amount)

    monkeypatch.setattr(Tally, "commit_hold", commit_hold)
    monkeypatch.setattr(trial.processes.module, "complete", lambda request: {"text": "x", "tokens": used})
    assert trial.processes.module.handler(gateway.request, None)["status"] == 200
    assert gateway.charged == [charged]


def test_a_late_call_is_not_charged_an_amount_that_others_take_before_its_commit(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each refusal that says how much fits, others take up to 50 of that amount, until nothing fits."""
    trial, commit = gateway.trial, Tally.commit_hold

    def commit_hold(tally: Tally, *hold: str, amount: int | None = None) -> Any:
        try:
            return commit(tally, *hold, amount=amount)
        except LimitReachedError as refused:
            if refused.left:
                trial.others.increment(*gateway.budget, amount=min(50, refused.left))
            raise

    def complete_slowly(request: dict[str, Any]) -> dict[str, Any]:
        trial.processes.clock.now_s += 1000
        return {"text": "x", "tokens": 130}

    monkeypatch.setattr(Tally, "commit_hold", commit_hold)
    monkeypatch.setattr(trial.processes.module, "complete", complete_slowly)
    assert trial.processes.module.handler(gateway.request, None)["status"] == 200
    assert trial.committed_amounts(*gateway.budget) == [0]
    assert trial.tally.get_counter(*gateway.budget)["value"] == 120


def test_two_runs_of_a_request_with_different_answers_of_the_model_are_charged_once(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second run is answered and commits while the first run waits for the model."""
    module, tokens = gateway.trial.processes.module, iter((12, 15))

    def complete(request: dict[str, Any]) -> dict[str, Any]:
        used = next(tokens)
        if used == 12:
            assert module.handler(request, None)["status"] == 200
        return {"text": "x", "tokens": used}

    monkeypatch.setattr(module, "complete", complete)
    assert module.handler(gateway.request, None)["status"] == 200
    assert gateway.charged == [15]


def test_an_order_whose_hold_is_voided_during_the_charge_is_not_sold(
    make_trial: Callable[[str, int], Trial], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another run sells the order, and somebody voids the sale, before the first run commits. The first run refunds
    nothing, because the person who voids a sale refunds it."""
    trial = make_trial("checkout", 0)
    module, provider = trial.processes.module, Provider(trial.processes)
    monkeypatch.setattr(module, "refund", provider.refund)
    trial.others.increment("stock", "mug", amount=2)
    order = {"order_id": "o-1", "item_id": "mug", "amount": 2}
    void_hold, is_first_charge = trial.others.void_hold, iter((True, False))

    def charge_after_void(order: dict[str, Any]) -> bool:
        if next(is_first_charge):
            assert module.handler(order, None) == {"sold": True}
            hold = trial.tally.hold("stock", "mug", 2, module.PAY_WITHIN_S, idempotency_key="o-1")  # a replay
            void_hold("stock", "mug", hold["hold"])
        return provider.charge(order)

    monkeypatch.setattr(module, "charge", charge_after_void)
    assert module.handler(order, None) == {"sold": False}
    assert (trial.committed_amounts("stock", "mug"), provider.refunded["o-1"]) == ([], 0)
    assert trial.tally.get_counter("stock", "mug")["value"] == 2


def test_a_run_that_gives_up_after_another_run_has_sold_refunds_nothing(
    make_trial: Callable[[str, int], Trial], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hold of the first run expires during the charge, and others buy the items, so the commit is refused. Before
    the first run gives up, the others return the items, and a second run sells them."""
    trial = make_trial("checkout", 0)
    module, provider = trial.processes.module, Provider(trial.processes)
    monkeypatch.setattr(module, "refund", provider.refund)
    give_up, item = module.give_up, ("stock", "mug")
    order = {"order_id": "o-1", "item_id": "mug", "amount": 2}
    trial.others.increment(*item, amount=2)

    def charge_slowly(order: dict[str, Any]) -> bool:
        trial.processes.clock.now_s += 1000
        trial.others.increment(*item, amount=-2)
        return provider.charge(order)

    def sell_and_give_up(order: dict[str, Any], hold: str) -> Any:
        trial.others.increment(*item, amount=2)
        assert module.handler(order, None) == {"sold": True}
        return give_up(order, hold)

    charges = iter((charge_slowly, provider.charge))
    monkeypatch.setattr(module, "charge", lambda order: next(charges)(order))
    monkeypatch.setattr(module, "give_up", sell_and_give_up)
    assert module.handler(order, None) == {"sold": True}
    assert (provider.charged["o-1"], provider.refunded["o-1"], trial.committed_amounts(*item)) == (2, 0, [2])


class DeadlyWire(SyncWire):
    """SIGKILL ends this process before request `last_request` (from 1) is sent or, if `answered`, after its answer."""

    def __init__(self, port: int, last_request: int, *, answered: bool) -> None:
        super().__init__(port)
        self.last_request, self.answered = last_request, answered

    def _call(self, operation: str, parameters: dict[str, Any]) -> dict[str, Any]:
        is_last = self.calls + 1 == self.last_request
        try:
            return {} if is_last and not self.answered else super()._call(operation, parameters)
        finally:
            if is_last:
                os.kill(os.getpid(), signal.SIGKILL)


@dataclass
class KilledRuns:
    """Runs of one example. SIGKILL ends each run, one request later each time, and the next run completes the work."""

    trial: Trial
    engine: Engine

    def is_killed(self, event: dict[str, Any], last_request: int, *, answered: bool) -> bool:
        """Runs the handler in a new process. Returns whether SIGKILL ended the process."""
        process = FORK.Process(target=self._run, args=(event, last_request, answered), daemon=True)
        process.start()
        process.join()
        assert process.exitcode in (0, -signal.SIGKILL)
        return process.exitcode != 0

    def _run(self, event: dict[str, Any], last_request: int, answered: bool) -> None:
        store = Store(DeadlyWire(self.engine.port, last_request, answered=answered), self.trial.invoke.store.settings)  # type: ignore[arg-type]
        module, functions = self.trial.processes.module, {name: name for name in client.FUNCTIONS}
        module.tally = Tally(functions, caller=module.__name__, lambda_client=FakeLambda(Invoke(store)))  # type: ignore[attr-defined]
        module.handler(event, None)

    def run_all(self, event_of: Callable[[str], dict[str, Any]], take: Callable[[str], object]) -> Iterator[str]:
        """Yields the name of each killed run, after the next run has answered. Between these runs, nothing happens, or
        the hold expires, or the hold expires and others `take` the held amount."""
        module = self.trial.processes.module
        for last_request in itertools.count(1):
            for answered, between in itertools.product((False, True), ("at once", "expired", "taken")):
                name = f"{last_request}-{answered}-{between}".replace(" ", "-")
                if not self.is_killed(event_of(name), last_request, answered=answered):
                    return
                self.trial.processes.clock.now_s += 0 if between == "at once" else 1000
                if between == "taken":
                    with suppress(LimitReachedError):
                        take(name)
                assert module.handler(event_of(name), None)
                self.trial.processes.clock.now_s += 2000
                yield name


def test_an_order_that_sigkill_interrupts_is_sold_or_refunded(
    make_trial: Callable[[str, int], Trial], engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial, payments = make_trial("checkout", 0), tmp_path / "provider.jsonl"  # processes share no memory
    payments.touch()

    def paid_amount(order: dict[str, Any]) -> int:
        return sum(
            amount for id_, amount in map(json.loads, payments.read_text().splitlines()) if id_ == order["order_id"]
        )

    def set_paid_amount(order: dict[str, Any], amount: int) -> bool:
        with payments.open("a") as lines:
            lines.write(json.dumps([order["order_id"], amount - paid_amount(order)]) + "\n")
        return True

    def order(name: str) -> dict[str, Any]:
        if name not in ids_in_stock:
            ids_in_stock.add(name)
            trial.others.increment("stock", name, amount=2)
        return {"order_id": name, "item_id": name, "amount": 2}

    ids_in_stock = set[str]()
    monkeypatch.setattr(trial.processes.module, "charge", lambda order: set_paid_amount(order, 2))
    monkeypatch.setattr(trial.processes.module, "refund", lambda order: set_paid_amount(order, 0))
    outcomes = Sums[int]()
    for name in KilledRuns(trial, engine).run_all(order, lambda name: trial.others.increment("stock", name, amount=-2)):
        sold = sum(trial.committed_amounts("stock", name))
        assert paid_amount(order(name)) == sold, name
        outcomes[sold] += 1
    assert outcomes[2] > outcomes[0] > 0


def test_a_call_that_sigkill_interrupts_is_charged_once(
    make_trial: Callable[[str, int], Trial], engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counter = Counter("tokens", prefix="TEAM", sort_key="TOKENS", attribute="tokens", ceiling=200, debt=100)
    monkeypatch.setitem(counters.COUNTERS, "tokens", counter)
    trial = make_trial("gateway", 0)

    def kept_answer(request: dict[str, Any]) -> dict[str, Any] | None:
        answer = tmp_path / request["id"]
        return json.loads(answer.read_text()) if answer.exists() else None

    def complete(request: dict[str, Any]) -> dict[str, Any]:
        (tmp_path / request["id"]).write_text('{"text": "x", "tokens": 90}')
        return {"text": "x", "tokens": 90}

    def request(name: str) -> dict[str, Any]:
        return {"team": name, "id": name, "prompt": PROMPT, "max_tokens": 50}

    monkeypatch.setattr(trial.processes.module, "complete", complete)
    monkeypatch.setattr(trial.processes.module, "kept_answer", kept_answer)
    charged = Sums[int]()
    for name in KilledRuns(trial, engine).run_all(
        request, lambda name: trial.others.increment("tokens", name, amount=150)
    ):
        assert trial.committed_amounts("tokens", name) == ([90] if kept_answer(request(name)) else []), name
        charged[sum(trial.committed_amounts("tokens", name))] += 1
    assert charged[90] > charged[0] > 0
