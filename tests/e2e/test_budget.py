"""Tests a budget over HTTP. 60 callers hold, change, commit and release at once, while the budget's limit changes,
answers get lost, and workers are killed. Each threshold crossing is one event.

What is *used* is the sum of what each hold uses: the amount that is held or committed. While a request about a hold is
open, the hold may use the amount from before or after the request. So the test knows, for each moment, the least and
the most that may be used (`Bounds`). A thread reads all the time, and each number that it reads is within these bounds.

A *step* is the answer to a request that places, commits or releases a hold, even if the limit refuses the request.

    ROUNDS=10 pytest tests/e2e/test_budget.py       runs ten rounds of about 170 requests, without reads and retries
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

DECLARED_LIMIT = 1_000
AMOUNT_THRESHOLD = 500
PERCENT_THRESHOLDS = (80, 100)  # of the limit
BUDGET = f"""Counter(
    "budget", prefix="TEAM", sort_key="BUDGET", attribute="used", ceiling={DECLARED_LIMIT}, limit_overrides=True,
    notify=Notify(percent={PERCENT_THRESHOLDS}, at=({AMOUNT_THRESHOLD},)))"""
TEAM = "/counters/budget/acme"
HOLDS = 60  # of a round, each with its own caller
ROUNDS = int(os.environ.get("ROUNDS", "1"))
LOST_SHARE = 1 / 6  # the share of the answers that never reach the caller
READ_REQUESTS = ("one tally", "many tallies", "too large hold")
"""The requests whose answers show the limit and what is left. A refused hold changes nothing, and shows both, too."""
LIMIT_BY_STEP = {35: 1_300, 75: 400}
"""The limits, by the number of steps after which each is set. After 35 steps most of the earlier limit is used, and the
raised limit has room for more holds. After 75 steps more is used than the lowered limit."""
LOWERED_LIMIT = min(LIMIT_BY_STEP.values())
KILL_STEPS = (10, 30, 50, 70, 90)
"""The numbers of steps after which workers are killed. A round has about 120 steps."""
RETRIED_STATUSES = {429, 500, 503}
LATE_STATUSES = {500, 503}
"""An attempt with such an answer may still be applied: a killed worker had sent the change (500), or the gateway did
not wait for the function, or the function for DynamoDB (503). If the gateway throttles (429), no function runs."""


class Span(NamedTuple):
    """From `start_s` (monotonic) until its next span starts, an amount is at least `least` and at most `most`."""

    start_s: float
    least: int
    most: int


@dataclass
class Bounds:
    """The bounds of several named amounts, and of their sum, over time."""

    spans: dict[Any, list[Span]] = field(default_factory=dict)
    """By the name of the amount, in the order of time."""

    def note(self, name: Any, *amounts: int) -> None:
        """Notes that from now on the named amount is one of `amounts`. Before the first note, the amount is 0."""
        spans = self.spans.setdefault(name, [Span(start_s=0.0, least=0, most=0)])
        spans.append(Span(time.monotonic(), min(amounts), max(amounts)))

    def sum_between(self, from_s: float, to_s: float) -> tuple[int, int]:
        """Returns the least and the most that the sum of all amounts can be at a moment between two monotonic times."""
        least = most = 0
        for spans in map(list, list(self.spans.values())):  # copies, because other threads add spans
            ends_s = [*(later.start_s for later in spans[1:]), to_s]
            ended_spans = zip(spans, ends_s, strict=True)
            overlapping = [span for span, end_s in ended_spans if span.start_s <= to_s and end_s >= from_s]
            least += min(span.least for span in overlapping)
            most += max(span.most for span in overlapping)
        return least, most


@dataclass
class Hold:
    """A hold, and what its caller knows of the hold."""

    number: int
    id: str
    amount: int
    """The amount that the last answer confirmed."""
    late_amounts: list[int] = field(default_factory=list)
    """Other amounts that the hold may have or commit, because an attempt may be applied after a retry was refused."""


@dataclass
class Team:
    """The callers of one team's budget. If a caller gets no final answer, it repeats the request with the same key."""

    dev: Dev
    token: str
    used: Bounds = field(default_factory=Bounds)
    """What each hold or subtraction adds to what is used, by the number of the hold or the key of the subtraction."""
    limit: Bounds = field(default_factory=Bounds)
    """The limit, as one amount with the name "limit"."""
    answers: list[int] = field(default_factory=list)
    """The statuses of all answers, including the answers that never reached the caller."""
    steps: list[int] = field(default_factory=list)
    """The number of the hold that each step is about."""
    late_holds: dict[int, int] = field(default_factory=dict)
    """The amounts of refused holds that an earlier attempt may still place, by the number of the hold."""
    chance: random.Random = field(default_factory=random.Random)
    """Chooses the answers that get lost."""
    answers_lost: int = 0

    def send(self, method: str, path: str, body: object = None, key: str | None = None) -> tuple[Answer, bool]:
        """Repeats a request until an answer that is not in RETRIED_STATUSES reaches the caller. Returns this answer,
        and whether an earlier attempt may still be applied. A lost answer does not count: its attempt has ended."""
        key_header = {} if key is None else {"idempotency_key": key}
        may_apply_late, until_s = False, time.monotonic() + PATIENCE_S
        while True:
            answer = self.dev.call(method, path, body, token=self.token, **key_header)
            self.answers.append(answer.status)
            is_lost = self.chance.random() < LOST_SHARE
            if answer.status not in RETRIED_STATUSES and not is_lost:
                return answer, may_apply_late
            self.answers_lost += is_lost
            may_apply_late |= answer.status in LATE_STATUSES
            assert time.monotonic() < until_s, answer
            time.sleep(0.05)

    def place_hold(self, number: int, amount: int) -> Hold | None:
        """Places a hold. Returns None if the limit refuses the hold."""
        self.used.note(number, 0, amount)
        body = {"amount": amount, "ttl_s": 3600}  # no hold expires during the test
        answer, may_apply_late = self.send("POST", f"{TEAM}/holds", body, key=f"hold-{number}")
        self.steps.append(number)
        if answer.status == 201:
            self.used.note(number, amount)
            return Hold(number, str(answer.body["hold"]), amount)
        assert_refused(answer, needed=amount)
        if may_apply_late:
            self.late_holds[number] = amount  # so 0 and `amount` stay the bounds until `place_late_holds`
        else:
            self.used.note(number, 0)
        return None

    def place_late_holds(self) -> list[Hold]:
        """Repeats the requests for `late_holds`, because the answers say which holds exist. Returns these holds."""
        late_holds, self.late_holds = self.late_holds, {}
        placed = [self.place_hold(number, amount) for number, amount in late_holds.items()]
        return [hold for hold in placed if hold]

    def change(self, hold: Hold, amount: int) -> None:
        """Changes the amount and the time of a hold. If the limit refuses the amount, the hold stays as it is."""
        self.used.note(hold.number, hold.amount, amount)
        body = {"amount": amount, "ttl_s": 7200}
        answer, may_apply_late = self.send("PATCH", f"{TEAM}/holds/{hold.id}", body, key=f"change-{hold.number}")
        if answer.status == 200:
            assert answer.body["amount"] == amount
            hold.amount = amount
        else:
            assert_refused(answer, needed=amount - hold.amount)
            if may_apply_late:
                hold.late_amounts.append(amount)
        self.used.note(hold.number, hold.amount, *hold.late_amounts)

    def commit(self, hold: Hold, amount: int | None = None) -> bool:
        """Commits `amount`, or what the hold holds if `amount` is None. Returns whether the limit allowed that."""
        known = [hold.amount, *hold.late_amounts]
        self.used.note(hold.number, *known, *([] if amount is None else [amount]))
        body = None if amount is None else {"amount": amount}
        answer, may_apply_late = self.send("POST", f"{TEAM}/holds/{hold.id}/commit", body)
        self.steps.append(hold.number)
        if answer.status == 200:
            self.used.note(hold.number, answer.body["amount"])
            return True
        assert amount is not None, answer  # what is held needs nothing more of the budget
        assert_refused(answer, needed=amount - min(known))  # the hold has one of the known amounts
        if may_apply_late:
            hold.late_amounts.append(amount)
        self.used.note(hold.number, hold.amount, *hold.late_amounts)
        return False

    def release(self, hold: Hold) -> None:
        """Releases a hold."""
        self.used.note(hold.number, 0, hold.amount, *hold.late_amounts)
        answer, _ = self.send("DELETE", f"{TEAM}/holds/{hold.id}")
        self.steps.append(hold.number)
        assert answer.status == 200, answer
        self.used.note(hold.number, 0)

    def subtract(self, key: str, amount: int) -> None:
        """Subtracts an amount from what is used."""
        self.used.note(key, 0, -amount)
        answer, _ = self.send("POST", f"{TEAM}/increments", {"amount": -amount}, key=key)
        assert answer.status == 200, answer
        self.used.note(key, -amount)

    def set_limit(self, limit: int, previous: int, key: str) -> None:
        self.limit.note("limit", previous, limit)
        answer, _ = self.send("PUT", f"{TEAM}/limit", {"limit": limit}, key=key)
        assert (answer.status, answer.body["limit"]) == (200, limit)
        self.limit.note("limit", limit)

    def read(self, request: str) -> tuple[float, int, int]:
        """Sends one of READ_REQUESTS, and asserts that what is used and the limit are within their bounds. Returns when
        the read began (monotonic), what is used, and the limit."""
        from_s = time.monotonic()
        if request == "too large hold":
            body = {"amount": AMOUNT_MAX, "ttl_s": 60}
            answer, _ = self.send("POST", f"{TEAM}/holds", body, key=f"too-large-{from_s}")
            assert answer.status == 409
            limit = answer.body["limit"]
            used = limit - answer.body["left"]  # a refusal does not show the value
        else:
            if request == "many tallies":
                answer, _ = self.send("GET", "/tallies/any?of=budget:acme")
                [tally] = answer.body["tallies"]
            else:
                answer, _ = self.send("GET", TEAM)
                tally = answer.body
            used, limit = tally["value"], tally["limit"]
            assert tally["left"] == limit - used, (request, tally)
        to_s = time.monotonic()
        for amount, bounds in ((used, self.used), (limit, self.limit)):
            least, most = bounds.sum_between(from_s, to_s)
            assert least <= amount <= most, (request, used, limit)
        return from_s, used, limit


def assert_refused(answer: Answer, *, needed: int) -> None:
    """Asserts that the limit refused a request, and that less than `needed` was left."""
    assert answer.status == 409, answer
    assert answer.body["left"] < needed, answer


@pytest.fixture
def team(start: Callable[..., Dev], tmp_path: Path) -> Team:
    app = copy_app(tmp_path)
    declared = app / "lambdas/counters.py"
    declared.write_text(declared.read_text().replace("declared([", f"declared([{BUDGET}, "))
    dev = start(app=app).wait_until_ready()
    team = Team(dev, dev.token("gateway", scope="tally/read tally/write"))
    team.limit.note("limit", DECLARED_LIMIT)
    return team


class Job(NamedTuple):
    """What a caller does with one hold."""

    number: int
    held: int
    """The amount when the caller places the hold."""
    changed: int
    """The amount to which the caller changes the hold."""
    used: int
    """The amount that the caller commits, if `end` is "other amount"."""
    end: str
    """How the hold ends: the caller commits the "other amount" or the "held amount", or the hold is "released". If the
    end is "open", the caller leaves the hold to the round, which releases the hold."""
    begins_after: int
    """The number of reads of the budget after which the caller places the hold. So reads fall between the steps."""
    ends_after: int
    """The number of reads after which the caller changes and ends the hold."""


def make_jobs(chance: random.Random, first: int, reads: int) -> list[Job]:
    """Returns the jobs of a round. `first`: the number of the first job. `reads`: how many reads precede the round."""
    ends = ["other amount"] * 30 + ["held amount"] * 14 + ["released"] * 8 + ["open"] * 8
    chance.shuffle(ends)
    # 40 callers place their holds at once. With 25 on average, these holds use up the declared limit.
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


def run_job(team: Team, job: Job, has_read: Callable[[int], object]) -> Hold | None:
    """Runs a job. Returns the hold if it stays open. `has_read(n)`: whether the budget was read n times."""
    wait_for(lambda: has_read(job.begins_after))
    hold = team.place_hold(job.number, job.held)
    if hold is None or job.end == "open":
        return hold
    wait_for(lambda: has_read(job.ends_after))
    team.change(hold, job.changed)
    if job.end == "released":
        team.release(hold)
    elif job.end == "held amount" or not team.commit(hold, job.used):
        team.commit(hold)
    return None


@dataclass
class Rounds:
    """Runs rounds of jobs, while one thread reads the budget all the time."""

    team: Team
    chance: random.Random
    all_over: threading.Event = field(default_factory=threading.Event)
    """Set after the last round, so that the thread stops reading."""
    callers_ended: threading.Event = field(default_factory=threading.Event)
    """Set after the callers of a round have ended, so that nobody waits for more steps."""
    reads: list[tuple[float, int, int]] = field(default_factory=list)
    """What `Team.read` returned: when each read began, what is used, and the limit."""
    workers_killed: int = 0
    lowered_s: float = 0.0
    """When the limit was last lowered (monotonic)."""

    def read(self) -> None:
        while not self.all_over.is_set():
            self.reads.append(self.team.read(READ_REQUESTS[len(self.reads) % len(READ_REQUESTS)]))

    def has_reached(self, step: int) -> bool:
        """Returns whether a step was reached, or cannot be reached because the callers of the round have ended."""
        return len(self.team.steps) >= step or self.callers_ended.is_set()

    def change_limits(self, steps_before: int) -> None:
        """Sets the limits of LIMIT_BY_STEP in a round. `steps_before`: the number of steps before the round."""
        previous = LOWERED_LIMIT if steps_before else DECLARED_LIMIT  # an earlier round has left the lowered limit
        for steps, limit in LIMIT_BY_STEP.items():
            wait_for(lambda steps=steps: self.has_reached(steps_before + steps))  # type: ignore[misc]
            self.team.set_limit(limit, previous, key=f"limit-{steps_before}-{steps}")
            previous = limit
        self.lowered_s = time.monotonic()

    def kill_workers(self, steps_before: int) -> None:
        """Kills workers after KILL_STEPS, if they run a function that the requests call, or the consumer that finds
        crossings. `steps_before`: the number of steps before the round."""
        for steps in KILL_STEPS:
            wait_for(lambda steps=steps: self.has_reached(steps_before + steps), every_s=0.01)  # type: ignore[misc]
            for function in ("holds", "increments", "reads", "bookkeeper"):
                for pid in self.team.dev.workers(function):
                    with suppress(ProcessLookupError):  # the worker has ended
                        os.kill(pid, signal.SIGKILL)
                        self.workers_killed += 1

    def run(self, number: int, reading: Future[None]) -> int:
        """Runs the jobs of a round, and releases the holds that stay open. Returns what is used after that. `reading`:
        the thread that reads; after the thread has failed, no job waits for reads."""
        team, steps_before = self.team, len(self.team.steps)
        jobs = make_jobs(self.chance, first=number * HOLDS, reads=len(self.reads))
        self.callers_ended.clear()

        def has_read(times: int) -> bool:
            return len(self.reads) >= times or reading.done()

        with ThreadPoolExecutor(HOLDS) as callers, ThreadPoolExecutor(2) as others:
            disturbing = [others.submit(disturb, steps_before) for disturb in (self.change_limits, self.kill_workers)]
            try:
                holds = list(callers.map(lambda job: run_job(team, job, has_read), jobs))
            finally:
                self.callers_ended.set()
            for future in disturbing:
                future.result()
        open_holds = [hold for hold in holds if hold] + team.place_late_holds()
        used_with_holds = self.known_use()
        for hold in open_holds:
            team.release(hold)
        used = self.known_use()
        assert used_with_holds - used == sum(hold.amount for hold in open_holds)
        return used

    def known_use(self) -> int:
        """Returns what is used. Call this while no request changes the budget, so that the bounds of each amount are
        equal. Asserts that each of READ_REQUESTS shows what is used, and the lowered limit."""
        now_s = time.monotonic()
        least, most = self.team.used.sum_between(now_s, now_s)
        assert least == most, "the test knows what every hold uses"
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
                used = rounds.run(number, reading)
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
    # When the limit is lowered, more than the limit is used. This may stay so, but what is used does not grow.
    used_later = [used for from_s, used, _ in reads if from_s >= rounds.lowered_s]
    assert used_later[0] > LOWERED_LIMIT
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
    assert len(on_bus) == len(events) < 100, "one answer lists all events"
    by_threshold: dict[int, list[dict[str, Any]]] = {
        threshold: [] for threshold in (AMOUNT_THRESHOLD, *PERCENT_THRESHOLDS)
    }
    for event in sorted(events, key=lambda event: str(event["sequence"])):
        # In an event of a percentage, `threshold` is the amount that the percentage was of the limit.
        by_threshold[event.get("percent", event["threshold"])].append(event)
    print("events:", {threshold: len(crossings) for threshold, crossings in by_threshold.items()})
    for threshold, crossings in by_threshold.items():
        is_reached = used >= amount_of(threshold, LOWERED_LIMIT)
        directions = [event["direction"] for event in crossings]
        assert directions == ["up", "down"] * (len(crossings) // 2) + ["up"] * is_reached
        for event in crossings:
            amount = amount_of(threshold, event.get("limit", 0))
            assert (event["value"] >= amount) == (event["direction"] == "up")
            assert event["by"] in ("change", "limit")  # of what is used, or of the limit


def amount_of(threshold: int, limit: int) -> float:
    """Returns the amount to use to reach one of the thresholds."""
    return threshold if threshold == AMOUNT_THRESHOLD else limit * threshold / 100
