"""A stack in the emulator that changes: `make emulator` runs it, with the time of each step.

Nothing is lost or counted twice while a stack changes under traffic: a broken deploy rolls back, a new counter comes.
test_rehearsal.py plays the rest of a stack's life, as a person does.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import app
from tally.streams import watermark
from tests.emulator import cdk_app
from tests.emulator.server import Emulator
from tests.emulator.stack import MINUTE_S, Json, Stack, synthesize, without_unsupported
from tests.emulator.steps import begin, deploy_and_compare, step
from tests.emulator.streams import Streams, run_sweeps
from tests.emulator.traffic import PAGE, Traffic
from tests.patience import wait_for

pytestmark = pytest.mark.long

NEW = "shares"
NEW_COUNTER = """
SHARES = Counter("shares", prefix="SHARE", sort_key="SHARES", attribute="shares", visible="soon")
COUNTERS = declared([*COUNTERS.values(), SHARES])
"""


def test_the_life_of_a_stack(tmp_path: Path) -> None:
    with step("synthesize, and with a new counter"):
        first = synthesize(tmp_path / "first", pageHosts="example.com")
        second = synthesize(tmp_path / "second", with_a_new_counter(tmp_path), pageHosts="example.com")
    with step("start the emulator"):
        emulator = Emulator(tmp_path)
    try:
        live(Stack(emulator, tmp_path), first, second)
    finally:
        emulator.stop()


def live(stack: Stack, first: Path, second: Path) -> None:
    """Begin, and change under traffic."""
    begin(stack, first)
    change(stack, stack.machine_token(), first, second)


def change(stack: Stack, token: str, first: Path, second: Path) -> None:
    """A broken deploy and a good one under traffic; then everything is judged."""
    traffic, streams = Traffic(stack, token, NEW), Streams(stack, first)
    with streams.running(), run_sweeps(stack, streams.said):
        with traffic.running():
            traffic.wait_for("visits", 20)
            with step("a broken deploy rolls back under traffic") as notes:
                notes.append(rolled_back(stack, second))
                traffic.wait_for("plays", 20)
                assert NEW not in traffic.accepted
            with step("a new counter deployed under traffic") as notes:
                deploy_and_compare(stack, second)
                traffic.wait_for(NEW, 20)
                notes.append(f"accepted so far: {dict(traffic.accepted)}")
        ended_s = time.time()
        with step("judged: no drift, no dead letters") as notes:
            until_judged(stack, streams, ended_s)
            assert stack.items("Ledger", "DEADLETTER") == []
            assert counted(stack, token) == dict(traffic.accepted)
            assert stack.call("GET", "/drift", token=token).body["drift"] == []
            notes.append(f"counted: {counted(stack, token)}")
    assert not traffic.failures
    assert not streams.said


def with_a_new_counter(folder: Path) -> Path:
    """`counters.py` with one more counter, whose changes the rollup has to know."""
    text = (app.LAMBDAS / "counters.py").read_text()
    path = folder / "counters.py"
    path.write_text(text + NEW_COUNTER)
    return path


def broken(template: Json) -> Json:
    """The template with a fault."""
    return cdk_app.broken(without_unsupported(template))


def rolled_back(stack: Stack, assembly: Path) -> str:
    """Deploy something broken: the stack is as it was. How it is then."""
    version = stack.call("GET", "/health").body["version"]
    done = stack.deploy(assembly, broken)
    assert done.returncode != 0
    assert set(stack.failure_reasons()) == {"Broken"}, stack.failure_reasons()
    assert stack.call("GET", "/health").body["version"] == version
    return stack.status


def until_judged(stack: Stack, streams: Streams, epoch_s: float) -> None:
    """Wait until every minute until then is judged."""

    def judged() -> bool:
        assert not streams.said, streams.said
        found = stack.items("Ledger", watermark.WATERMARK_KEY["PK"]["S"])
        return any(int(item.get("judged", {"N": "0"})["N"]) > epoch_s // MINUTE_S for item in found)

    wait_for(judged, every_s=0.5)


def counted(stack: Stack, token: str) -> dict[str, int]:
    """What reads say of what the traffic has counted."""
    return {
        "plays": stack.call("GET", "/videos/busy/plays").body["value"],
        "visits": stack.call("GET", f"/visits?url={PAGE}").body["value"],
        NEW: stack.call("GET", f"/counters/{NEW}/busy", token=token).body["value"],
    }
