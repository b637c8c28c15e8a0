"""The life of a stack in the emulator, from bootstrap to destroy: `make emulator` runs it, with the time of each step.

Nothing is lost or counted twice while a stack changes under traffic: a broken deploy rolls back, a new counter comes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import app
from api.needs import PUT_RECEIPT
from declarations import Declarations
from stacks.names import camel
from tally.streams import watermark
from tests.emulator.server import Emulator
from tests.emulator.stack import MINUTE_S, Json, Stack, bridged, rewritten, synthesize
from tests.emulator.steps import begin, deployed, play, smoke, step
from tests.emulator.streams import Streams
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
    with step("synthesize for prod"):
        prod = synthesize(tmp_path / "prod", stage="prod")
    with step("start the emulator"):
        emulator = Emulator(tmp_path)
    try:
        live(Stack(emulator, tmp_path), first, second)
        with step("prod deployed and destroyed: data stays"):
            keep(Stack(emulator, tmp_path, "prod"), prod)
    finally:
        emulator.stop()


def live(stack: Stack, first: Path, second: Path) -> None:
    """Begin, change under traffic, end."""
    begin(stack, first)
    token = stack.machine_token()
    with step("make deploy: no difference, and what to call"):
        said = stack.make("deploy", ARGS=f"--yes --method=direct --app {rewritten(first, bridged)}").stdout
        assert f"{stack.name} answers at {stack.outputs['ApiUrl']}" in said
        assert stack.outputs["TokenUrl"] in said
    change(stack, token, first, second)
    with step("make destroy"):
        assert "deleted; nothing remains" in stack.destroy().stdout
        assert left_over(stack) == []


def change(stack: Stack, token: str, first: Path, second: Path) -> None:
    """A broken deploy and a good one under traffic; then everything is judged."""
    traffic, streams = Traffic(stack, token, NEW), Streams(stack, first)
    with streams.running(), swept(stack):
        with step("make smoke") as notes:
            notes.append(smoke(stack, token))
        with traffic.running():
            traffic.wait_for("visits", 20)
            with step("a broken deploy rolls back under traffic") as notes:
                notes.append(rolled_back(stack, second))
                traffic.wait_for("plays", 20)
                assert NEW not in traffic.accepted
            with step("a new counter deployed under traffic") as notes:
                before = len(stack.updated("AWS::Lambda::Alias"))
                deployed(stack, second)
                consumers_first(stack.updated("AWS::Lambda::Alias")[before:])
                traffic.wait_for(NEW, 20)
                notes.append(f"accepted so far: {dict(traffic.accepted)}")
        ended_s = time.time()
        with step("judged: no drift, no dead letters") as notes:
            until_judged(stack, ended_s)
            assert stack.items("Ledger", "DEADLETTER") == []
            assert counted(stack, token) == dict(traffic.accepted)
            assert stack.call("GET", "/drift", token=token).body["drift"] == []
            notes.append(f"counted: {counted(stack, token)}")
    assert not traffic.failures
    assert not streams.said


def keep(stack: Stack, assembly: Path) -> None:
    """A prod stage cannot be destroyed by mistake, and keeps its tables with what was counted when it is destroyed.

    test_restoring.py adopts such tables.
    """
    deployed(stack, assembly)
    play(stack)
    counts = stack.items("Counts", "VID#9f3a")
    assert "Tally-prod: protected from deletion" in stack.destroy("-c stage=prod", check=False).stderr
    assert stack.status == "CREATE_COMPLETE"
    cloudformation = stack.client("cloudformation")
    cloudformation.update_termination_protection(StackName=stack.name, EnableTerminationProtection=False)
    said = stack.destroy("-c stage=prod").stdout
    assert stack.client("lambda").list_functions()["Functions"] == []
    kept = stack.client("dynamodb").list_tables()["TableNames"]
    assert set(kept) == {stack.outputs[f"{table}TableName"] for table in ("Counts", "Receipts", "Ledger")}
    assert all(f"table      {table}" in said.partition("deleted;")[2] for table in kept)
    assert said.strip().endswith('make deploy ARGS="-c stage=prod --import-existing-resources"')
    assert stack.items("Counts", "VID#9f3a") == counts


def consumers_first(aliases: list[str]) -> None:
    """Whatever writes receipts goes live after the consumers that have to know what it writes."""
    declared = Declarations.load(app.LAMBDAS / "counters.py")
    places = {
        name: place
        for name in declared.needs
        for place, alias in enumerate(aliases)
        if alias.startswith(f"Functions{camel(name)}Live")
    }
    writing = [name for name in declared.functions if declared.needs[name] >= PUT_RECEIPT]
    assert max(places["rollup"], places["bookkeeper"]) < min(places[name] for name in writing)


def with_a_new_counter(folder: Path) -> Path:
    """`counters.py` with one more counter, whose changes the rollup has to know."""
    text = (app.LAMBDAS / "counters.py").read_text()
    changed = text.replace("import Counter, declared", "import Counter, declared") + NEW_COUNTER
    path = folder / "counters.py"
    path.write_text(changed)
    return path


def broken(template: Json) -> Json:
    """The template with an alarm that lacks its comparison, made after every function has changed."""
    changed = bridged(template)
    aliases = [name for name, found in changed["Resources"].items() if found["Type"] == "AWS::Lambda::Alias"]
    half = {"MetricName": "Drift", "Namespace": "Tally", "Threshold": 0, "EvaluationPeriods": 1}
    changed["Resources"]["Broken"] = {"Type": "AWS::CloudWatch::Alarm", "Properties": half, "DependsOn": aliases}
    return changed


def rolled_back(stack: Stack, assembly: Path) -> str:
    """Deploy something broken: the stack is as it was. How it is then."""
    version = stack.call("GET", "/health").body["version"]
    done = stack.deploy(assembly, broken)
    assert done.returncode != 0
    assert set(stack.failed()) == {"Broken"}, stack.failed()
    assert stack.call("GET", "/health").body["version"] == version
    return stack.status


@contextmanager
def swept(stack: Stack) -> Iterator[None]:
    """The sweep runs as its schedule runs it, once a (short) minute."""
    alias, stop = stack.alias("sweep"), threading.Event()

    def sweep() -> None:
        while not stop.wait(MINUTE_S / 3):
            stack.client("lambda").invoke(FunctionName=alias, Payload=b"{}")

    thread = threading.Thread(target=sweep)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def until_judged(stack: Stack, epoch_s: float) -> None:
    """Wait until every minute until then is judged."""

    def judged() -> bool:
        found = stack.items("Ledger", watermark.JUDGE["PK"]["S"])
        return any(int(item.get("judged", {"N": "0"})["N"]) > epoch_s // MINUTE_S for item in found)

    wait_for(judged, every_s=0.5)


def counted(stack: Stack, token: str) -> dict[str, int]:
    """What reads say of what the traffic has counted."""
    return {
        "plays": stack.call("GET", "/videos/busy/plays").body["value"],
        "visits": stack.call("GET", f"/visits?url={PAGE}").body["value"],
        NEW: stack.call("GET", f"/counters/{NEW}/busy", token=token).body["value"],
    }


def left_over(stack: Stack) -> list[str]:
    """What a deleted stack has left in the account, of what costs or counts."""
    listed = {
        "dynamodb": ("list_tables", "TableNames"), "lambda": ("list_functions", "Functions"),
        "apigatewayv2": ("get_apis", "Items"), "cloudwatch": ("describe_alarms", "MetricAlarms"),
        "events": ("list_rules", "Rules"), "logs": ("describe_log_groups", "logGroups"),
        "sqs": ("list_queues", "QueueUrls"), "sns": ("list_topics", "Topics"),
    }  # fmt: skip
    found = {service: getattr(stack.client(service), call)().get(key, []) for service, (call, key) in listed.items()}
    roles = [role["RoleName"] for role in stack.client("iam").list_roles()["Roles"]]
    return [f"{service}: {kept}" for service, kept in found.items() if kept] + [
        role for role in roles if role.startswith(stack.name)
    ]
