"""A budget over HTTP: 60 callers at once hold, change, commit and release, while its limit changes, answers get lost,
and workers die. Value, left, held and limit always agree, and each crossing of its thresholds is one event.

    ROUNDS=10 pytest tests/e2e/test_budget.py       more of the same: about 170 operations a round
"""

from __future__ import annotations

import os
import random
import shutil
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
from tests.e2e.dev import ROOT, Answer, Dev
from tests.patience import PATIENCE_S, wait_for

BUDGET = """Counter(
    "budget", prefix="TEAM", sort_key="BUDGET", attribute="used", ceiling=1_000, limit_overrides=True,
    notify=Notify(percent=(80, 100), at=(500,)))"""
TEAM = "/counters/budget/acme"
HOLDS = 60
ROUNDS = int(os.environ.get("ROUNDS", "1"))
LOST = 1 / 6  # of the answers: the caller does not get them
WAYS = ("number", "many", "ask")
"""How somebody looks: at the number, at many numbers, or by asking for more than there is."""
PLANS = {35: 1_300, 75: 400}
"""The limit changes after so many answers: to more, and to less than is used by then."""
KILLS = (10, 30, 50, 70, 90)
AGAIN = {429, 500, 503}
LOWERED = min(PLANS.values())


@dataclass
class Book:
    """What each of some amounts may be, and since when: from the moment at which a request that changes it begins, it
    is one of two."""

    spans: dict[Any, list[tuple[float, int, int]]] = field(default_factory=dict)

    def note(self, name: Any, *may_be: int) -> None:
        self.spans.setdefault(name, [(0.0, 0, 0)]).append((time.monotonic(), min(may_be), max(may_be)))

    def sum(self, from_s: float, to_s: float) -> tuple[int, int]:
        """The least and the most that they come to in this time."""
        least = most = 0
        for spans in map(list, list(self.spans.values())):  # others write meanwhile
            seen = [
                span for place, span in enumerate(spans) if place + 1 == len(spans) or spans[place + 1][0] >= from_s
            ]
            inside = [span for span in seen if span[0] <= to_s]
            least += min(low for _, low, _ in inside)
            most += max(high for _, _, high in inside)
        return least, most


@dataclass
class Team:
    """Its callers: each sends again what was not answered, under the same key."""

    dev: Dev
    token: str
    used: Book = field(default_factory=Book)
    limit: Book = field(default_factory=Book)
    answers: list[int] = field(default_factory=list)
    """The statuses, of copies too."""
    steps: list[int] = field(default_factory=list)
    """The holds that were taken, settled, or refused so far."""
    takes: list[int] = field(default_factory=list)
    """Holds that were refused after a copy that was killed, and may still be on its way."""
    commits: dict[int, int] = field(default_factory=dict)
    """What such a copy of a commit may keep of a hold."""
    changes: dict[int, int] = field(default_factory=dict)
    """What such a copy of a change may make of a hold."""
    chance: random.Random = field(default_factory=random.Random)
    lost: int = 0

    def sent(self, method: str, path: str, body: object = None, key: str | None = None) -> tuple[Answer, bool]:
        """The answer, and whether an earlier copy was not answered."""
        keyed, failed, until_s = {} if key is None else {"idempotency_key": key}, False, time.monotonic() + PATIENCE_S
        while True:
            answer = self.dev.call(
                method, path if path.startswith("/tallies") else TEAM + path, body, token=self.token, **keyed
            )
            self.answers.append(answer.status)
            lost = self.chance.random() < LOST
            if answer.status not in AGAIN and not lost:
                return answer, failed
            self.lost += lost
            failed |= lost or answer.status == 500
            assert time.monotonic() < until_s, answer
            time.sleep(0.05)

    def take(self, number: int, amount: int) -> str | None:
        """The hold's id; None if there is no room."""
        self.used.note(number, 0, amount)
        answer, failed = self.sent("POST", "/holds", {"amount": amount, "ttl_s": 3600}, f"hold-{number}")
        self.steps.append(number)
        if answer.status == 201:
            self.used.note(number, amount)
            return str(answer.body["hold"])
        assert (answer.status, answer.body["left"] < amount) == (409, True), answer
        if failed:
            self.takes.append(number)
        else:
            self.used.note(number, 0)
        return None

    def change(self, number: int, hold: str, held: int, amount: int) -> int:
        """What the hold has after it is given another amount and more time: what it had, if there is no room."""
        self.used.note(number, held, amount)
        body = {"amount": amount, "ttl_s": 7200}
        answer, failed = self.sent("PATCH", f"/holds/{hold}", body, f"change-{number}")
        if answer.status == 200:
            assert answer.body["amount"] == amount
            self.used.note(number, amount)
            return amount
        assert (answer.status, answer.body["left"] < amount - held) == (409, True), answer
        self.changes |= {number: amount} if failed else {}
        self.used.note(number, held, self.changes.get(number, held))
        return held

    def settle(self, number: int, hold: str, held: int, kept: int | None, *, release: bool = False) -> bool:
        """Whether there was room for what is kept."""
        end = 0 if release else held if kept is None else kept
        changed = self.changes.get(number, held)
        self.used.note(number, held, end, changed, self.commits.get(number, held))
        path = f"/holds/{hold}" if release else f"/holds/{hold}/commit"
        answer, failed = self.sent("DELETE" if release else "POST", path, None if kept is None else {"amount": kept})
        self.steps.append(number)
        if answer.status == 409:
            assert answer.body["left"] < end - min(held, changed), answer
            self.commits |= {number: end} if failed else {}
            self.used.note(number, held, changed, self.commits.get(number, held))
            return False
        assert answer.status == 200, answer
        self.used.note(number, answer.body.get("amount", 0))
        return True

    def pay(self, name: str, amount: int) -> None:
        """Take off what was spent."""
        self.used.note(name, 0, -amount)
        answer, _ = self.sent("POST", "/increments", {"amount": -amount}, name)
        assert answer.status == 200, answer
        self.used.note(name, -amount)

    def plan(self, limit: int, was: int, name: str) -> None:
        self.limit.note("plan", was, limit)
        answer, _ = self.sent("PUT", "/limit", {"limit": limit}, name)
        assert (answer.status, answer.body["limit"]) == (200, limit)
        self.limit.note("plan", limit)

    def look(self, way: str) -> tuple[float, int, int]:
        """Look in one of WAYS: used and left are the limit. Returns when it began, what is used, and the limit."""
        from_s = time.monotonic()
        if way == "ask":
            answer, _ = self.sent("POST", "/holds", {"amount": AMOUNT_MAX, "ttl_s": 60}, f"ask-{from_s}")
            assert answer.status == 409
            found = answer.body | {"value": answer.body["limit"] - answer.body["left"]}
        elif way == "many":
            answer, _ = self.sent("GET", "/tallies/any?of=budget:acme")
            [found] = answer.body["tallies"]
        else:
            answer, _ = self.sent("GET", "")
            found = answer.body
        to_s = time.monotonic()
        used, limit = found["value"], found["limit"]
        assert found["left"] == limit - used, (way, found)
        for what, book in ((used, self.used), (limit, self.limit)):
            least, most = book.sum(from_s, to_s)
            assert least <= what <= most, (way, used, limit)
        return from_s, used, limit


@pytest.fixture
def team(start: Callable[..., Dev], tmp_path: Path) -> Team:
    app = tmp_path / "app"
    app.mkdir()
    for name in ("lambdas", "stacks", "tally"):
        shutil.copytree(ROOT / name, app / name, ignore=shutil.ignore_patterns("__pycache__"))
    for file in filter(Path.is_file, ROOT.iterdir()):
        shutil.copy(file, app)
    (app / "node_modules").symlink_to(ROOT / "node_modules")
    declared = app / "lambdas/counters.py"
    declared.write_text(declared.read_text().replace("declared([", f"declared([{BUDGET}, "))
    dev = start(app=app).wait_until_ready()
    made = Team(dev, dev.token("gateway", scope="tally/read tally/write"))
    made.limit.note("plan", 1_000)
    return made


class Job(NamedTuple):
    """One hold, to what it is changed, what of it is used, and how it ends. It begins and ends after so many looks."""

    number: int
    held: int
    changed: int
    used: int
    end: str
    begins: int
    ends: int


def jobs(chance: random.Random, first: int, looks: int) -> list[Job]:
    """The jobs of a round: their numbers begin with `first`, and they wait for looks after the first `looks`."""
    ends = ["other"] * 30 + ["held"] * 14 + ["released"] * 8 + ["open"] * 8
    chance.shuffle(ends)
    begins = [0] * 40 + [chance.randint(1, 20) for _ in ends[40:]]
    return [
        Job(
            first + number,
            *(chance.randint(*of) for of in ((10, 40), (1, 60), (0, 60))),
            end,
            looks + at,
            looks + at + chance.randint(1, 20),
        )
        for number, (end, at) in enumerate(zip(ends, begins, strict=True))
    ]


def run(team: Team, job: Job, looked: Callable[[int], object]) -> str | None:
    """`looked`: whether the number was looked at so many times. Returns the hold, if it stays open."""
    number, held, changed, used, end, *_ = job
    wait_for(lambda: looked(job.begins))
    hold = team.take(number, held)
    if hold is None or end == "open":
        return hold
    wait_for(lambda: looked(job.ends))
    held = team.change(number, hold, held, changed)
    if end == "other" and not team.settle(number, hold, held, used):
        end = "held"
    if end == "held":
        team.settle(number, hold, held, None)
    if end == "released":
        team.settle(number, hold, held, None, release=True)
    return None


@dataclass
class Storm:
    """Rounds of jobs, while somebody looks at the number all the time."""

    team: Team
    chance: random.Random
    over: threading.Event = field(default_factory=threading.Event)
    called: threading.Event = field(default_factory=threading.Event)
    """Set once the callers of a round have ended: no step comes any more."""
    looks: list[tuple[float, int, int]] = field(default_factory=list)
    killed: int = 0
    lowered_s: float = 0.0
    """When the limit was lowered for the last time."""

    def read(self) -> None:
        while not self.over.is_set():
            self.looks.append(self.team.look(WAYS[len(self.looks) % len(WAYS)]))

    def stepped(self, steps: int) -> bool:
        return len(self.team.steps) >= steps or self.called.is_set()

    def change(self, first: int) -> None:
        """Change the limit after so many steps of the round whose steps begin with `first`."""
        was = LOWERED if first else 1_000
        for after, limit in PLANS.items():
            wait_for(lambda after=after: self.stepped(first + after))  # type: ignore[misc]
            self.team.plan(limit, was, f"plan-{first}-{after}")
            was = limit
        self.lowered_s = time.monotonic()

    def kill(self, first: int) -> None:
        for after in KILLS:
            wait_for(lambda after=after: self.stepped(first + after), every_s=0.01)  # type: ignore[misc]
            for function in ("holds", "increments", "reads", "bookkeeper"):
                for pid in self.team.dev.workers(function):
                    with suppress(ProcessLookupError):  # it ended in between
                        os.kill(pid, signal.SIGKILL)
                        self.killed += 1

    def round(self, number: int, reading: Future[None]) -> int:
        """Run the jobs of a round. At its end every hold has an end but those that stay open. Returns what is used."""
        team, first = self.team, len(self.team.steps)
        of_round = jobs(self.chance, number * HOLDS, len(self.looks))
        self.called.clear()
        with ThreadPoolExecutor(HOLDS) as callers, ThreadPoolExecutor(2) as others:
            acting = [others.submit(act, first) for act in (self.change, self.kill)]
            try:
                holds = list(
                    callers.map(lambda job: run(team, job, lambda n: len(self.looks) >= n or reading.done()), of_round)
                )
            finally:
                self.called.set()
            for act in acting:
                act.result()
        for late in team.takes:
            holds[late - number * HOLDS] = team.take(late, of_round[late - number * HOLDS].held)
        team.takes.clear()
        used = self.agreed()
        held = {job: hold for job, hold in zip(of_round, holds, strict=True) if hold}
        for job, hold in held.items():
            team.settle(job.number, hold, job.held, None, release=True)
        spent = self.agreed()
        assert used - spent == sum(job.held for job in held), "what is held is the rest of what is used"
        return spent

    def agreed(self) -> int:
        """What is used, once nothing is under way: every look says the same."""
        least, most = self.team.used.sum(time.monotonic(), time.monotonic())
        assert least == most, "every hold has an end by now"
        for way in WAYS:
            assert self.team.look(way)[1:] == (least, LOWERED)
        return least


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, 1])
def test_spent_held_and_left_are_the_limit_at_every_moment(team: Team, seed: int) -> None:
    storm = Storm(team, random.Random(seed))
    team.chance.seed(seed)
    with ThreadPoolExecutor(1) as reader:
        reading = reader.submit(storm.read)
        try:
            for number in range(ROUNDS):
                used = storm.round(number, reading)
                if number + 1 < ROUNDS:
                    team.pay(f"pay-{number}", used)
        finally:
            storm.over.set()
        reading.result()
    failed, refused, looks = team.answers.count(500), team.answers.count(409), storm.looks
    print(
        f"seed {seed}: {len(team.answers)} requests, {storm.killed} workers killed, {failed} calls failed,"
        f" {team.lost} answers lost, {refused} refused, {len(looks)} looks"
    )
    assert storm.killed
    assert team.lost
    assert max(used for _, used, _ in looks) <= max(PLANS.values())
    after = [used for from_s, used, _ in looks if from_s >= storm.lowered_s]
    assert all(later <= max(earlier, LOWERED) for earlier, later in pairwise(after))
    no_drift(team)
    crossed(team, used)


def no_drift(team: Team) -> None:
    """Once everything is judged, nothing drifts."""
    ended_s = time.time()

    def judged() -> bool:
        status = team.dev.call("GET", "/status", token=team.token).body
        return bool((status.get("judged_up_to") or 0) > ended_s)

    wait_for(judged, every_s=1)
    assert team.dev.call("GET", "/drift", token=team.token).body["drift"] == []


def crossed(team: Team, used: int) -> None:
    """Each true crossing is one event: of a threshold, those upwards and downwards take turns, up to how it is now."""

    def listed() -> list[dict[str, Any]]:
        return list(team.dev.call("GET", "/events?limit=100", token=team.token).body["events"])

    wait_for(lambda: all(one["sent"] for one in listed()), every_s=0.5)
    events = listed()
    heard = {one["detail"]["event"] for one in team.dev.call("GET", "/dev/events").body["events"]}
    assert heard == {one["event"] for one in events}
    assert len(heard) == len(events) < 100
    own: dict[Any, list[dict[str, Any]]] = {500: [], 80: [], 100: []}
    for event in sorted(events, key=lambda one: str(one["sequence"])):
        own[event.get("percent", event["threshold"])].append(event)
    print("events:", {of: len(found) for of, found in own.items()})
    for of, found in own.items():
        reached = used >= (of if of == 500 else LOWERED * of / 100)
        assert [one["direction"] for one in found] == ["up", "down"] * (len(found) // 2) + ["up"] * reached
        for one in found:
            at = of if of == 500 else one["limit"] * of / 100
            assert (one["value"] >= at) == (one["direction"] == "up")
            assert one["by"] in ("change", "limit")
