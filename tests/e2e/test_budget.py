"""Tests a budget over HTTP. 60 callers hold, change, commit and release at once, while the budget's limit changes,
answers get lost, and workers are killed. `value` and `left` always add up to `limit`, and each threshold crossing is
one event. A step is a hold that is placed, refused, committed or released. The limit changes after some of the steps.

    ROUNDS=10 pytest tests/e2e/test_budget.py       runs ten rounds of about 170 operations
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tally.counter import AMOUNT_MAX
from tests.e2e.dev import Answer, Dev, copy_app
from tests.patience import PATIENCE_S, wait_for

BUDGET = """Counter(
    "budget", prefix="TEAM", sort_key="BUDGET", attribute="used", ceiling=1_000, limit_overrides=True,
    notify=Notify(percent=(80, 100), at=(500,)))"""
TEAM = "/counters/budget/acme"
HOLDS = 60  # of a round, each with its own caller
ROUNDS = int(os.environ.get("ROUNDS", "1"))
LOST_SHARE = 1 / 6  # the share of the answers that never reach the caller
READ_REQUESTS = ("one tally", "many tallies", "too large hold")
"""The requests whose answers have what is used, what is left, and the limit."""
LIMIT_BY_STEP = {35: 1_300, 75: 400}
"""The limits, by the number of steps after which each is set. The second limit is below what is used when it is set."""
KILL_STEPS = (10, 30, 50, 70, 90)
"""The numbers of steps after which workers are killed."""
RETRIED_STATUSES = {429, 500, 503}
LOWERED_LIMIT = min(LIMIT_BY_STEP.values())


@dataclass
class Bounds:
    """The bounds of named amounts over time. While a request that changes an amount is open, the amount may be the old
    or the new amount."""

    spans: dict[Any, list[tuple[float, int, int]]] = field(default_factory=dict)
    """By the amount's name: [(start, least, most)]. A start is monotonic. A span ends when the next span starts."""

    def note(self, name: Any, *amounts: int) -> None:
        """Notes that from now on the named amount is one of `amounts`."""
        self.spans.setdefault(name, [(0.0, 0, 0)]).append((time.monotonic(), min(amounts), max(amounts)))

    def sum(self, from_s: float, to_s: float) -> tuple[int, int]:
        """Returns the least and the largest sum that the amounts may have between two monotonic times."""
        least = most = 0
        for spans in map(list, list(self.spans.values())):  # copies, because other threads add spans
            ends = [*(start_s for start_s, _, _ in spans[1:]), to_s]
            inside = [span for span, end_s in zip(spans, ends, strict=True) if span[0] <= to_s and end_s >= from_s]
            least += min(low for _, low, _ in inside)
            most += max(high for _, _, high in inside)
        return least, most


@dataclass
class Team:
    """The callers of the budget. A caller that gets no answer repeats the request with the same key."""

    dev: Dev
    token: str
    used: Bounds = field(default_factory=Bounds)
    """What each hold or subtraction adds to what is used, by the number of the hold or the key of the subtraction."""
    limit: Bounds = field(default_factory=Bounds)
    answers: list[int] = field(default_factory=list)
    """The statuses of all answers, including the answers that never reached the caller."""
    steps: list[int] = field(default_factory=list)
    """The number of the hold that each step is about."""
    late_holds: list[int] = field(default_factory=list)
    """The numbers of refused holds whose earlier attempt got no answer. Tally may still apply the earlier attempt."""
    late_commits: dict[int, int] = field(default_factory=dict)
    """By the number of a hold: the amount that an unanswered attempt to commit the hold may still commit."""
    late_changes: dict[int, int] = field(default_factory=dict)
    """By the number of a hold: the amount to which an unanswered attempt may still change the hold."""
    chance: random.Random = field(default_factory=random.Random)
    answers_lost: int = 0

    def send(self, method: str, path: str, body: object = None, key: str | None = None) -> tuple[Answer, bool]:
        """Repeats a request until it is answered. Returns the answer, and whether earlier attempts may still apply."""
        key_header = {} if key is None else {"idempotency_key": key}
        is_ambiguous, until_s = False, time.monotonic() + PATIENCE_S
        while True:
            answer = self.dev.call(
                method, path if path.startswith("/tallies") else TEAM + path, body, token=self.token, **key_header
            )
            self.answers.append(answer.status)
            lost = self.chance.random() < LOST_SHARE
            if answer.status not in RETRIED_STATUSES and not lost:
                return answer, is_ambiguous
            self.answers_lost += lost
            is_ambiguous |= lost or answer.status == 500  # 500: a killed worker may have committed
            assert time.monotonic() < until_s, answer
            time.sleep(0.05)

    def place_hold(self, number: int, amount: int) -> str | None:
        """Places a hold. Returns its id; None if the limit refuses the hold."""
        self.used.note(number, 0, amount)
        answer, is_ambiguous = self.send("POST", "/holds", {"amount": amount, "ttl_s": 3600}, f"hold-{number}")
        self.steps.append(number)
        if answer.status == 201:
            self.used.note(number, amount)
            return str(answer.body["hold"])
        assert (answer.status, answer.body["left"] < amount) == (409, True), answer
        if is_ambiguous:
            self.late_holds.append(number)
        else:
            self.used.note(number, 0)
        return None

    def change(self, number: int, hold: str, held: int, amount: int) -> int:
        """Changes the amount and the time of a hold. Returns the hold's amount: the old amount if the limit refuses."""
        self.used.note(number, held, amount)
        body = {"amount": amount, "ttl_s": 7200}
        answer, is_ambiguous = self.send("PATCH", f"/holds/{hold}", body, f"change-{number}")
        if answer.status == 200:
            assert answer.body["amount"] == amount
            self.used.note(number, amount)
            return amount
        assert (answer.status, answer.body["left"] < amount - held) == (409, True), answer
        self.late_changes |= {number: amount} if is_ambiguous else {}
        self.used.note(number, held, self.late_changes.get(number, held))
        return held

    def settle(self, number: int, hold: str, held: int, committed: int | None, *, release: bool = False) -> bool:
        """Commits or releases a hold. Returns whether the limit allowed that. `held`: the amount of the hold.
        `committed`: the amount to commit; None: `held`."""
        used_after = 0 if release else held if committed is None else committed
        changed = self.late_changes.get(number, held)
        self.used.note(number, held, used_after, changed, self.late_commits.get(number, held))
        path = f"/holds/{hold}" if release else f"/holds/{hold}/commit"
        body = None if committed is None else {"amount": committed}
        answer, is_ambiguous = self.send("DELETE" if release else "POST", path, body)
        self.steps.append(number)
        if answer.status == 409:
            # The hold has one of these amounts, because a late change may have been applied.
            assert answer.body["left"] < used_after - min(held, changed), answer
            self.late_commits |= {number: used_after} if is_ambiguous else {}
            self.used.note(number, held, changed, self.late_commits.get(number, held))
            return False
        assert answer.status == 200, answer
        self.used.note(number, answer.body.get("amount", 0))  # the answer to a release has no amount
        return True

    def subtract(self, name: str, amount: int) -> None:
        """Subtracts an amount from what is used."""
        self.used.note(name, 0, -amount)
        answer, _ = self.send("POST", "/increments", {"amount": -amount}, name)
        assert answer.status == 200, answer
        self.used.note(name, -amount)

    def set_limit(self, limit: int, previous: int, key: str) -> None:
        self.limit.note("override", previous, limit)
        answer, _ = self.send("PUT", "/limit", {"limit": limit}, key)
        assert (answer.status, answer.body["limit"]) == (200, limit)
        self.limit.note("override", limit)

    def read(self, request: str) -> tuple[float, int, int]:
        """Sends one of READ_REQUESTS, and asserts that used and left add up to the limit. Returns when the read began
        (monotonic), what is used, and the limit."""
        from_s = time.monotonic()
        if request == "too large hold":
            answer, _ = self.send("POST", "/holds", {"amount": AMOUNT_MAX, "ttl_s": 60}, f"too-large-{from_s}")
            assert answer.status == 409
            tally = answer.body | {"value": answer.body["limit"] - answer.body["left"]}
        elif request == "many tallies":
            answer, _ = self.send("GET", "/tallies/any?of=budget:acme")
            [tally] = answer.body["tallies"]
        else:
            answer, _ = self.send("GET", "")
            tally = answer.body
        to_s = time.monotonic()
        used, limit = tally["value"], tally["limit"]
        assert tally["left"] == limit - used, (request, tally)
        for amount, bounds in ((used, self.used), (limit, self.limit)):
            least, most = bounds.sum(from_s, to_s)
            assert least <= amount <= most, (request, used, limit)
        return from_s, used, limit


@pytest.fixture
def team(start: Callable[..., Dev], tmp_path: Path) -> Team:
    app = copy_app(tmp_path)
    declared = app / "lambdas/counters.py"
    declared.write_text(declared.read_text().replace("declared([", f"declared([{BUDGET}, "))
    dev = start(app=app).wait_until_ready()
    team = Team(dev, dev.token("gateway", scope="tally/read tally/write"))
    team.limit.note("override", 1_000)
    return team


class Job(NamedTuple):
    """One hold: the amount that is held first, after a change, and used; and how the hold ends. `begins_after` and
    `ends_after`: after how many reads of the tally the caller places and ends the hold."""

    number: int
    held: int
    changed: int
    used: int
    end: str
    begins_after: int
    ends_after: int


def jobs(chance: random.Random, first: int, reads: int) -> list[Job]:
    """Returns the jobs of a round. `first`: the number of the first job. `reads`: how many reads precede the round."""
    ends = ["other amount"] * 30 + ["held amount"] * 14 + ["released"] * 8 + ["open"] * 8
    chance.shuffle(ends)
    # 40 callers place their holds at once.
    begins = [0] * 40 + [chance.randint(1, 20) for _ in ends[40:]]
    return [
        Job(
            first + number,
            held=chance.randint(10, 40),
            changed=chance.randint(1, 60),
            used=chance.randint(0, 60),
            end=end,
            begins_after=reads + begin,
            ends_after=reads + begin + chance.randint(1, 20),
        )
        for number, (end, begin) in enumerate(zip(ends, begins, strict=True))
    ]


def run_job(team: Team, job: Job, has_read: Callable[[int], object]) -> str | None:
    """Runs a job. `has_read(n)`: whether the tally was read n times. Returns the id of a hold that stays open, or None.
    If the limit refuses to commit another amount, commits the held amount."""
    number, held, changed, used, end, *_ = job
    wait_for(lambda: has_read(job.begins_after))
    hold = team.place_hold(number, held)
    if hold is None or end == "open":
        return hold
    wait_for(lambda: has_read(job.ends_after))
    held = team.change(number, hold, held, changed)
    if end == "other amount" and not team.settle(number, hold, held, used):
        end = "held amount"
    if end == "held amount":
        team.settle(number, hold, held, None)
    if end == "released":
        team.settle(number, hold, held, None, release=True)
    return None


@dataclass
class Rounds:
    """Rounds of jobs. A thread reads the tally all the time."""

    team: Team
    chance: random.Random
    all_over: threading.Event = field(default_factory=threading.Event)
    callers_ended: threading.Event = field(default_factory=threading.Event)
    """Set after the callers of a round have ended, so that nobody waits for more steps."""
    reads: list[tuple[float, int, int]] = field(default_factory=list)
    workers_killed: int = 0
    lowered_s: float = 0.0
    """When the limit was last lowered (monotonic)."""

    def read(self) -> None:
        while not self.all_over.is_set():
            self.reads.append(self.team.read(READ_REQUESTS[len(self.reads) % len(READ_REQUESTS)]))

    def has_reached(self, step: int) -> bool:
        return len(self.team.steps) >= step or self.callers_ended.is_set()

    def change_limits(self, first: int) -> None:
        """Sets the limits of LIMIT_BY_STEP in a round. `first`: the number of steps before the round."""
        previous = LOWERED_LIMIT if first else 1_000  # the limit of the earlier round, or the declared ceiling
        for after, limit in LIMIT_BY_STEP.items():
            wait_for(lambda after=after: self.has_reached(first + after))  # type: ignore[misc]
            self.team.set_limit(limit, previous, f"limit-{first}-{after}")
            previous = limit
        self.lowered_s = time.monotonic()

    def kill_workers(self, first: int) -> None:
        for after in KILL_STEPS:
            wait_for(lambda after=after: self.has_reached(first + after), every_s=0.01)  # type: ignore[misc]
            for function in ("holds", "increments", "reads", "bookkeeper"):
                for pid in self.team.dev.workers(function):
                    with suppress(ProcessLookupError):  # the worker has ended
                        os.kill(pid, signal.SIGKILL)
                        self.workers_killed += 1

    def round(self, number: int, reading: Future[None]) -> int:
        """Runs the jobs of a round, and releases the holds that stay open. Returns what is used after that. `reading`:
        the thread that reads; after the thread has failed, no job waits for reads."""
        team, first = self.team, len(self.team.steps)
        round_jobs = jobs(self.chance, number * HOLDS, len(self.reads))
        self.callers_ended.clear()

        def has_read(times: int) -> bool:
            return len(self.reads) >= times or reading.done()

        with ThreadPoolExecutor(HOLDS) as callers, ThreadPoolExecutor(2) as others:
            disturbing = [others.submit(disturb, first) for disturb in (self.change_limits, self.kill_workers)]
            try:
                holds = list(callers.map(lambda job: run_job(team, job, has_read), round_jobs))
            finally:
                self.callers_ended.set()
            for future in disturbing:
                future.result()
        for late in team.late_holds:  # the answer to a repeated request says whether the hold exists
            holds[late - number * HOLDS] = team.place_hold(late, round_jobs[late - number * HOLDS].held)
        team.late_holds.clear()
        used = self.settled_value()
        open_holds = {job: hold for job, hold in zip(round_jobs, holds, strict=True) if hold}
        for job, hold in open_holds.items():
            team.settle(job.number, hold, job.held, None, release=True)
        spent = self.settled_value()
        assert used - spent == sum(job.held for job in open_holds), "the released holds account for the difference"
        return spent

    def settled_value(self) -> int:
        """Returns what is used while no request is open. Asserts that each of READ_REQUESTS returns the same."""
        least, most = self.team.used.sum(time.monotonic(), time.monotonic())
        assert least == most, "the outcome of every hold is known"
        for request in READ_REQUESTS:
            assert self.team.read(request)[1:] == (least, LOWERED_LIMIT)
        return least


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, 1])
def test_used_and_left_add_up_to_the_limit_at_every_moment(team: Team, seed: int) -> None:
    rounds = Rounds(team, random.Random(seed))
    team.chance.seed(seed)
    with ThreadPoolExecutor(1) as reader:
        reading = reader.submit(rounds.read)
        try:
            for number in range(ROUNDS):
                used = rounds.round(number, reading)
                if number + 1 < ROUNDS:  # the next round begins with nothing used
                    team.subtract(f"subtract-{number}", used)
        finally:
            rounds.all_over.set()
        reading.result()
    failed, refused, reads = team.answers.count(500), team.answers.count(409), rounds.reads
    print(
        f"seed {seed}: {len(team.answers)} requests, {rounds.workers_killed} workers killed, {failed} calls failed,"
        f" {team.answers_lost} answers lost, {refused} refused, {len(reads)} reads"
    )
    assert rounds.workers_killed
    assert team.answers_lost
    assert max(used for _, used, _ in reads) <= max(LIMIT_BY_STEP.values())
    # What is used may be above a lowered limit, but does not grow there.
    used_later = [used for from_s, used, _ in reads if from_s >= rounds.lowered_s]
    assert all(later <= max(earlier, LOWERED_LIMIT) for earlier, later in pairwise(used_later))
    assert_no_drift(team)
    assert_crossings(team, used)


def assert_no_drift(team: Team) -> None:
    """Waits until the minute of the last change is judged, and asserts that nothing drifts."""
    ended_s = time.time()

    def judged() -> bool:
        status = team.dev.call("GET", "/status", token=team.token).body
        return bool((status.get("judged_up_to") or 0) > ended_s)

    wait_for(judged, every_s=1)
    assert team.dev.call("GET", "/drift", token=team.token).body["drift"] == []


def assert_crossings(team: Team, used: int) -> None:
    """Asserts that each crossing is one event. The events of a threshold alternate between up and down, and the last
    event agrees with what is used."""

    def listed() -> list[dict[str, Any]]:
        return list(team.dev.call("GET", "/events?limit=100", token=team.token).body["events"])

    wait_for(lambda: all(event["sent"] for event in listed()), every_s=0.5)
    events = listed()
    on_bus = {entry["detail"]["event"] for entry in team.dev.call("GET", "/dev/events").body["events"]}
    assert on_bus == {event["event"] for event in events}
    assert len(on_bus) == len(events) < 100
    by_threshold: dict[Any, list[dict[str, Any]]] = {500: [], 80: [], 100: []}  # an amount, and two percentages
    for event in sorted(events, key=lambda event: str(event["sequence"])):
        by_threshold[event.get("percent", event["threshold"])].append(event)
    print("events:", {threshold: len(crossings) for threshold, crossings in by_threshold.items()})
    for threshold, crossings in by_threshold.items():
        is_reached = used >= (threshold if threshold == 500 else LOWERED_LIMIT * threshold / 100)
        directions = [event["direction"] for event in crossings]
        assert directions == ["up", "down"] * (len(crossings) // 2) + ["up"] * is_reached
        for event in crossings:
            amount = threshold if threshold == 500 else event["limit"] * threshold / 100
            assert (event["value"] >= amount) == (event["direction"] == "up")
            assert event["by"] in ("change", "limit")
