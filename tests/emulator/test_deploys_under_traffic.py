"""Deploys in the emulator under traffic. `make emulator` runs this test, and prints the time of each step.

No change is lost or counted twice while a broken deploy rolls back, and while a deploy adds a counter.
test_rehearsal.py runs the commands that a person types, from the first deploy to `make destroy`.
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
from tests.emulator.steps import deploy_and_check_resources, deploy_and_play, step
from tests.emulator.streams import StreamDelivery, run_sweeps
from tests.emulator.traffic import PAGE, Traffic
from tests.patience import wait_for

pytestmark = pytest.mark.long

ADDED_COUNTER = "shares"
ADDED_DECLARATION = """
SHARES = Counter("shares", prefix="SHARE", sort_key="SHARES", attribute="shares", visible="soon")
COUNTERS = declared([*COUNTERS.values(), SHARES])
"""


def test_deploys_under_traffic_lose_no_change_and_count_none_twice(tmp_path: Path) -> None:
    with step("synthesize without and with a new counter"):
        first = synthesize(tmp_path / "first", pageHosts="example.com")
        second = synthesize(tmp_path / "second", write_counters_with_added_counter(tmp_path), pageHosts="example.com")
    with step("start the emulator"):
        emulator = Emulator(tmp_path)
    try:
        stack = Stack(emulator, tmp_path)
        deploy_and_play(stack, first)
        change_under_traffic(stack, stack.machine_token(), first, second)
    finally:
        emulator.stop()


def change_under_traffic(stack: Stack, token: str, old: Path, new: Path) -> None:
    """Makes a broken deploy and a valid deploy under traffic, and waits until every minute is judged.

    `old`, `new`: assemblies without and with the added counter.
    """
    traffic, streams = Traffic(stack, token, ADDED_COUNTER), StreamDelivery(stack, old)
    with streams.running(), run_sweeps(stack, streams.failures):
        with traffic.running():
            traffic.wait_for("visits", 20)
            with step("a broken deploy rolls back under traffic") as notes:
                notes.append(deploy_broken(stack, new))
                traffic.wait_for("plays", 20)
                assert ADDED_COUNTER not in traffic.accepted
            with step("a deploy under traffic adds a counter") as notes:
                deploy_and_check_resources(stack, new)
                traffic.wait_for(ADDED_COUNTER, 20)
                notes.append(f"accepted so far: {dict(traffic.accepted)}")
        traffic_ended_s = time.time()
        with step("the judge finds no drift, no dead letters") as notes:
            wait_until_judged(stack, streams, traffic_ended_s)
            assert stack.items("Ledger", "DEADLETTER") == []
            assert read_numbers(stack, token) == dict(traffic.accepted)
            assert stack.call("GET", "/drift", token=token).body["drift"] == []
            notes.append(f"counted: {read_numbers(stack, token)}")
    assert not traffic.failures
    assert not streams.failures


def write_counters_with_added_counter(folder: Path) -> Path:
    """Writes a `counters.py` that also has the added counter, whose changes the rollup adds. Returns the file."""
    text = (app.LAMBDAS / "counters.py").read_text()
    path = folder / "counters.py"
    path.write_text(text + ADDED_DECLARATION)
    return path


def with_fault(template: Json) -> Json:
    """Returns the template for the emulator, with a fault."""
    return cdk_app.with_broken_alarm(without_unsupported(template))


def deploy_broken(stack: Stack, assembly: Path) -> str:
    """Deploys a template with a fault, and checks that the old code runs after that. Returns the stack's status."""
    version = stack.call("GET", "/health").body["version"]
    deploy = stack.deploy(assembly, with_fault)
    assert deploy.returncode != 0
    assert set(stack.failed_resources()) == {cdk_app.BROKEN_ALARM}, stack.failed_resources()
    assert stack.call("GET", "/health").body["version"] == version
    return stack.status


def wait_until_judged(stack: Stack, streams: StreamDelivery, epoch_s: float) -> None:
    """Waits until every minute up to `epoch_s` is judged."""

    def is_judged() -> bool:
        assert not streams.failures, streams.failures
        items = stack.items("Ledger", watermark.WATERMARK_KEY["PK"]["S"])
        return any(int(item.get("judged", {"N": "0"})["N"]) > epoch_s // MINUTE_S for item in items)

    wait_for(is_judged, every_s=0.5)


def read_numbers(stack: Stack, token: str) -> dict[str, int]:
    """Returns the numbers of the counters that the traffic changes."""
    return {
        "plays": stack.call("GET", "/videos/busy/plays").body["value"],
        "visits": stack.call("GET", f"/visits?url={PAGE}").body["value"],
        ADDED_COUNTER: stack.call("GET", f"/counters/{ADDED_COUNTER}/busy", token=token).body["value"],
    }
