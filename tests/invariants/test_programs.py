"""Random programs of plays, likes and unlikes under random faults have the results of a model that never fails.
`PROGRAMS=120 make test` runs 120 programs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import counters
from tally.dev.base.engine import Engine
from tally.dynamo import contention
from tally.dynamo.client import Store, dynamodb_client
from tally.dynamo.contention import Breaker, Spread
from tally.errors import KeyReusedError, NotFoundError, RetryableError
from tests import faults
from tests.conftest import fresh_tables
from tests.faults import Fault, FaultProxy
from tests.invariants.world import CALLER_TRIES_MAX, Outcome, World, retry_until_final
from tests.sync_wire import SyncWire

EXAMPLES = int(os.environ.get("PROGRAMS", "15"))
VIDEOS, POSTS, USERS = ("v1", "v2"), ("p1", "p2"), ("ann", "bob", "carol")
FORGED_REFUSAL = faults.condition_and_conflict(failed_at=0, conflict_at=-1, code="ThrottlingError")
"""The first write of a transaction fails its condition, and the last write is throttled. With a key the first
write is the receipt, which DynamoDB would return, so only changes without a key may meet this fault."""
FAULTS = (
    faults.LOSE_RESPONSE, faults.FAIL_AFTER, faults.TRUNCATE, faults.FAIL_BEFORE, faults.DROP_BEFORE, faults.THROTTLE,
    faults.CONFLICT, faults.THROTTLED_TRANSACTION, FORGED_REFUSAL,
    faults.condition_and_conflict(failed_at=-1, conflict_at=0),
    faults.error_after_write("TransactionInProgressException"), faults.error_answer("AccessDeniedException"),
)  # fmt: skip


@dataclass(frozen=True)
class Step:
    """One change. `kind`: play, like, unlike, or post, which writes the post `target`. `user`: None if nobody has
    signed in. `amount`: of a play, otherwise 0. `faults`: of the change's transactions in turn; None: no fault."""

    kind: str
    target: str
    user: str | None
    key: str | None
    amount: int
    faults: tuple[Fault | None, ...]


@dataclass
class Model:
    """The right numbers and answers. `plays`: by video. `likes`: the users by post. `receipts`: the amount and the body
    of each change with a key, by kind, target, user and key."""

    plays: dict[str, int] = field(default_factory=dict)
    likes: dict[str, set[str]] = field(default_factory=dict)
    receipts: dict[tuple[str, ...], tuple[int, dict[str, Any]]] = field(default_factory=dict)

    def answer(self, step: Step) -> Outcome | type[Exception]:
        """Changes the numbers. Returns the answer of a step, or the type of its error."""
        name = (step.kind, step.target, step.user or "", step.key or "")
        if step.key is not None and name in self.receipts:
            amount, body = self.receipts[name]
            return (body, True) if amount == step.amount else KeyReusedError
        body = self._play(step) if step.kind == "play" else self._like(step)
        if body is None:
            return NotFoundError
        if step.key is not None:
            self.receipts[name] = (step.amount, body)
        return body, False

    def _play(self, step: Step) -> dict[str, Any]:
        self.plays[step.target] = self.plays.get(step.target, 0) + step.amount
        return {"video_id": step.target, "counted": True, "visible": "now"}

    def _like(self, step: Step) -> dict[str, Any] | None:
        if step.target not in self.likes:
            return None
        likers, liked = self.likes[step.target], step.kind == "like"
        is_change = (step.user in likers) is not liked
        (likers.add if liked else likers.discard)(step.user or "")
        return {"present": liked, "changed": is_change, "visible": "now"}


@st.composite
def steps(draw: st.DrawFn) -> Step:
    """Draws a step. There are few keys, so a key is often reused."""
    kind = draw(st.sampled_from(["play", "play", "like", "like", "unlike", "unlike", "post"]))
    keys = st.sampled_from(["k1", "k2"])
    key = draw(keys if kind == "play" else st.none() | keys)
    possible = st.sampled_from([fault for fault in FAULTS if key is None or fault is not FORGED_REFUSAL])
    injected_faults = draw(
        st.just([]) | st.lists(st.none() | possible, min_size=1, max_size=4) | possible.map(lambda fault: [fault] * 3)
    )
    target = draw(st.sampled_from(VIDEOS if kind == "play" else POSTS))
    user = draw(st.sampled_from(USERS if kind in ("like", "unlike") else [None, "ann"]))
    amount = draw(st.sampled_from([1, 1, 1, 7, -2])) if kind == "play" else 0
    return Step(kind, target, user, key, amount, tuple(injected_faults))


def attempt(world: World, step: Step) -> Outcome | type[Exception] | None:
    """Makes the change of a step once. Returns the answer, or the type of its error; None if the error is retryable."""
    try:
        if step.kind == "play":
            return world.play(step.key or "", step.target, step.amount, call=world.call(step.user))
        change = world.like if step.kind == "like" else world.unlike
        return change(step.user or "", step.target, step.key)
    except (KeyReusedError, NotFoundError) as refusal:
        return type(refusal)
    except RetryableError:
        return None


def run(world: World, model: Model, step: Step) -> None:
    """Does a step in the model and, with retries, in the world. Compares the answers."""
    world.proxy.plan = faults.script({"TransactWriteItems": step.faults})
    if step.kind == "post":
        retry_until_final(lambda: world.write_post(step.target))
        model.likes.setdefault(step.target, set())
        return
    expected = model.answer(step)
    answers = [attempt(world, step)]
    while answers[-1] is None and len(answers) < CALLER_TRIES_MAX:
        answers.append(attempt(world, step))
    assert known_part(step, answers, answers[-1]) == known_part(step, answers, expected)


def known_part(step: Step, answers: list[Any], answer: Any) -> Any:
    """Returns what an answer must say in spite of faults. Faults may decide whether an answer is a replay, whether this
    call made the change, and whether the change spilled."""
    if isinstance(answer, type):
        return answer
    body, replayed = answer
    body = {name: value for name, value in body.items() if name != "visible"}
    if step.key is None and any(step.faults):
        body = {name: value for name, value in body.items() if name != "changed"}
    return body, replayed if len(answers) == 1 else None


def compare(world: World, model: Model) -> None:
    """Compares the stored items with the model."""
    plays = {video: world.tally_after_rollup(id_=video) for video in VIDEOS}
    assert plays == dict.fromkeys(VIDEOS, 0) | model.plays
    for post_id, likers in model.likes.items():
        assert world.likes(post_id)[1] == likers
        assert world.tally_after_rollup(counters.LIKES, post_id) == len(likers)
    assert len(world.receipts()) == len(model.receipts)


@pytest.fixture(scope="module")
def shared_world(engine: Engine) -> Iterator[World]:
    """One world for all programs, as one process serves many calls. The pauses before retries are short."""
    with FaultProxy(engine.endpoint) as proxy, pytest.MonkeyPatch.context() as patch:
        patch.setattr(contention, "BACKOFF_FIRST_S", 0.0002)
        with closing(dynamodb_client(endpoint_url=proxy.endpoint)) as proxied, closing(SyncWire(engine.port)) as raw:
            yield World(Store(proxied, fresh_tables(engine.endpoint)), raw, proxy=proxy)


def begin_program(world: World, engine: Engine, *, strip_tokens: bool) -> Model:
    """Creates tables with one post for the next program, and resets the spread and the breaker."""
    tables = fresh_tables(engine.endpoint, ("counts",))
    world.store = replace(world.store, settings=tables, spread=Spread(), breaker=Breaker())
    world.proxy.plan, world.proxy.strip_tokens = faults.no_faults, strip_tokens
    world.proxy.clear_requests()
    world.write_post("p1")
    return Model(likes={"p1": set()})


@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(program=st.lists(steps(), min_size=3, max_size=15), strip_tokens=st.booleans())
def test_any_program_of_plays_and_likes_with_any_faults_gives_the_models_numbers(
    shared_world: World, engine: Engine, program: list[Step], strip_tokens: bool
) -> None:
    model = begin_program(shared_world, engine, strip_tokens=strip_tokens)
    for step in program:
        run(shared_world, model, step)
    compare(shared_world, model)
