"""The processes of a soak. The soak kills or freezes consumers and the sweep at random, and restarts them later."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import time
from collections import Counter as Multiset
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from typing import Any

from tests.faults import FaultProxy, no_faults

from . import deliveries, workers
from .fault_plan import make_plan
from .setup import SoakSetup, set_up_process

START_S_MAX = 120.0  # until the proxies listen
REPORT_S = 0.5  # between two reports of the number of faults
KILL_EVERY_MINUTES = 2.0  # minutes, each of `minute_s` seconds, between two kills or freezes, on average
FROZEN_SHARE = 0.25  # the share of the processes that are frozen, not killed
# For so many minutes a process stays frozen or ended, on average and at most. Drift is confirmed after 5 minutes, so
# some processes are down for longer.
DOWN_MINUTES, DOWN_MINUTES_MAX = 2.0, 15.0
AT_ONCE_SHARE = 0.6  # the share of the killed processes that are restarted at once
ROLES: dict[str, Callable[[SoakSetup, str], None]] = {
    "rollup": deliveries.consume, "bookkeeper": deliveries.consume, "sweep": deliveries.sweep,
}  # fmt: skip
_context = multiprocessing.get_context("forkserver")


def prepare_forkserver() -> None:
    """Let the process that forks the other processes import their modules once."""
    _context.set_forkserver_preload(["bench.soak.preloaded"])


def run_proxies(setup: SoakSetup, ready: Connection, faults_end: Event) -> None:
    """Run the proxies until this process is killed. `ready` gets the setup with the endpoints of the proxies.

    `faults_end` ends the faults. One proxy removes DynamoDB's idempotency tokens, and the other proxy keeps the tokens.
    The proxies outlive the killed processes, so a request may arrive after its process was killed.
    """
    set_up_process(setup, "proxies")
    without_tokens = FaultProxy(setup.engine_endpoint, make_plan(setup.seed), strip_tokens=True, requests_kept=0)
    with_tokens = FaultProxy(setup.engine_endpoint, make_plan(setup.seed + 1), requests_kept=0)
    with without_tokens, with_tokens:
        url, url_with_tokens = without_tokens.endpoint, with_tokens.endpoint
        ready.send(replace(setup, faulty_endpoint=url, faulty_endpoint_with_tokens=url_with_tokens))
        path = setup.folder / "faults.json"
        while True:
            if faults_end.wait(REPORT_S):
                without_tokens.plan = with_tokens.plan = no_faults
                time.sleep(REPORT_S)  # after the event, `wait` returns at once
            counts: Multiset[str] = Multiset()
            for proxy in (without_tokens, with_tokens):
                for (name, _), count in proxy.counts.items():
                    counts[name] += count
                for failure in proxy.failures:
                    print(repr(failure), flush=True)
            new_file = path.with_suffix(".new")
            new_file.write_text(json.dumps(counts))
            os.replace(new_file, path)


def begin_proxies(setup: SoakSetup) -> tuple[SoakSetup, Any, Any]:
    """Start the proxies. Returns the setup with their endpoints, their process, and the event that ends the faults."""
    (receiver, sender), faults_end = _context.Pipe(), _context.Event()
    process = _start_process(run_proxies, setup, sender, faults_end)
    if not receiver.poll(START_S_MAX):
        raise TimeoutError("the proxies did not start")
    return receiver.recv(), process, faults_end


def begin_workers(setup: SoakSetup, count: int, operations: int) -> list[Any]:
    """Start `count` workers, each with its part of the operations."""
    parts = workers.split(operations, count)
    return [_start_process(workers.work, setup, number, part) for number, part in enumerate(parts)]


def _start_process(target: Callable[..., None], *arguments: Any) -> Any:
    process = _context.Process(target=target, args=arguments, daemon=True)
    process.start()
    return process


@dataclass
class ConsumerProcesses:
    """The processes of the consumers and the sweep, which `kill_or_restart` kills, freezes and restarts."""

    setup: SoakSetup
    kills: int = 0
    freezes: int = 0
    _running: dict[str, Any] = field(default_factory=dict)
    _down_until_s: dict[str, float] = field(default_factory=dict)
    _next_kill_s: float = 0.0  # 0: `kill_or_restart` has planned no kill

    def __post_init__(self) -> None:
        self._chance = random.Random(f"{self.setup.seed}/consumers")
        for role in ROLES:
            self._start(role)

    def _start(self, role: str) -> None:
        self._running[role] = _start_process(ROLES[role], self.setup, role)

    def kill_or_restart(self, now_s: float, *, may_kill: bool) -> None:
        """Restart the processes whose time down is over, and kill or freeze a process if the next kill is due.

        `now_s`: on the monotonic clock. If `may_kill` is False, restarts all processes, and kills none. Raises
        RuntimeError if a process ended by itself.
        """
        for role, until_s in list(self._down_until_s.items()):
            if until_s <= now_s or not may_kill:
                del self._down_until_s[role]
                if self._running[role].is_alive():
                    os.kill(self._running[role].pid, signal.SIGCONT)
                else:
                    self._start(role)
        for role, process in self._running.items():
            if role not in self._down_until_s and not process.is_alive():
                raise RuntimeError(f"{role} failed:\n{self.setup.end_of_log(role)}")
        if may_kill and now_s >= self._next_kill_s:
            if self._next_kill_s:
                self._kill_or_freeze(now_s)
            self._next_kill_s = now_s + self._chance.expovariate(1 / KILL_EVERY_MINUTES) * self.setup.minute_s

    def _kill_or_freeze(self, now_s: float) -> None:
        up = [role for role in ROLES if role not in self._down_until_s]
        if not up:
            return
        role = self._chance.choice(up)
        process = self._running[role]
        down_s = min(DOWN_MINUTES_MAX, self._chance.expovariate(1 / DOWN_MINUTES)) * self.setup.minute_s
        if self._chance.random() < FROZEN_SHARE:
            os.kill(process.pid, signal.SIGSTOP)
            self.freezes += 1
            self._down_until_s[role] = now_s + down_s
            return
        process.kill()
        process.join()
        self.kills += 1
        if self._chance.random() < AT_ONCE_SHARE:
            self._start(role)
        else:
            self._down_until_s[role] = now_s + down_s

    def stop(self) -> None:
        """Kill all processes."""
        for process in self._running.values():
            process.kill()
            process.join()
