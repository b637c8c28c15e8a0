"""Functions under AWS's runtime client that fail, hang, die, or have many callers at once.

Each test runs twice: with the client's native part, and as on a Mac without it.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tally.dev.functions import loop, pool, runtime
from tally.dev.functions.pool import Pool, ThrottledError
from tally.dev.stack.template import Function
from tests.e2e.dev import running
from tests.patience import PATIENCE_S

HANDLER = """
import os, signal, sys, time
os.chdir(os.environ["LAMBDA_TASK_ROOT"])
print("cold start")
def handler(event, context):
    match event.get("do"):
        case "raise": raise ValueError("no")
        case "die": os.kill(os.getpid(), signal.SIGKILL)
        case "exit": sys.exit(3)
        case "sleep": time.sleep(event["s"])
        case "wait":
            open("waiting", "a").close()
            while not os.path.exists("free"): time.sleep(0.01)
        case "environment": return dict(os.environ)
        case "context":
            return [context.aws_request_id, context.function_name, context.get_remaining_time_in_millis(),
                    context.invoked_function_arn, context.function_version, context.memory_limit_in_mb,
                    context.log_group_name, context.log_stream_name, context.client_context, str(context.identity)]
    return os.getpid()
"""


@pytest.fixture
def task_root(tmp_path: Path) -> Path:
    (tmp_path / "tried.py").write_text(HANDLER)
    return tmp_path


@pytest.fixture(autouse=True, params=["native", "hidden"])
def client(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "hidden":
        hide(monkeypatch)


def hide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the native part be missing."""
    monkeypatch.setitem(sys.modules, "runtime_client", None)
    assert runtime.client() == (loop.__file__,)


def run(body: Callable[[Pool], Awaitable[None]], log: Path, *, timeout_s: float = 10, workers_max: int = 1) -> None:
    """Run `body` with a pool of the function: of one process, because a slow machine lets a pool grow."""

    async def whole() -> None:
        function = Function("tried", "tried.handler", "python3.14", {"OWN": "1"}, timeout_s, 256)
        with log.open("ab") as file:
            made = Pool(function, runtime.environment(function, log.parent, {"EXTRA": "2"}), file, workers_max)
            try:
                await body(made)
            finally:
                await made.close()
        await until(lambda: len(asyncio.all_tasks()) == 1)  # a task that nobody ends complains when it is collected

    asyncio.run(whole())


async def until(condition: Callable[[], object]) -> None:
    """Wait for it, while the loop runs."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.01)


async def call(made: Pool, **event: object) -> Any:
    outcome = await made.invoke(json.dumps(event).encode())
    assert not outcome.failed, outcome
    return json.loads(outcome.payload)


async def failure(made: Pool, **event: object) -> Any:
    outcome = await made.invoke(json.dumps(event).encode())
    assert outcome.failed
    return json.loads(outcome.payload)


def test_the_environment_is_lambdas_and_nothing_else(task_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.example.com")
    monkeypatch.setenv("AWS_PROFILE", "mine")

    async def body(made: Pool) -> None:
        found = await call(made, do="environment")
        assert (found["OWN"], found["EXTRA"], found["_HANDLER"]) == ("1", "2", "tried.handler")
        assert found["LAMBDA_TASK_ROOT"] == str(task_root)
        assert (found["AWS_LAMBDA_FUNCTION_NAME"], found["AWS_LAMBDA_FUNCTION_MEMORY_SIZE"]) == ("tried", "256")
        assert found["AWS_LAMBDA_LOG_FORMAT"] == "JSON"
        assert not {"HTTP_PROXY", "AWS_PROFILE", "HOME", "TALLY_COUNTS_TABLE"} & found.keys()
        request_id, name, remaining_ms, arn, *_ = await call(made, do="context")
        assert (len(request_id), name) == (36, "tried")
        assert arn == "arn:aws:lambda:eu-west-1:000000000000:function:tried"
        assert 0 < remaining_ms <= 10_000

    run(body, task_root / "log")


def test_an_exception_is_the_functions_error_and_the_process_stays(task_root: Path) -> None:
    async def body(made: Pool) -> None:
        pid = await call(made)
        error = await failure(made, do="raise")
        assert (error["errorType"], error["errorMessage"]) == ("ValueError", "no")
        assert await call(made) == pid

    run(body, task_root / "log")
    [line] = [line for line in (task_root / "log").read_text().splitlines() if "ValueError" in line]
    assert (json.loads(line)["level"], json.loads(line)["errorMessage"]) == ("ERROR", "no")


@pytest.mark.parametrize(("how", "says"), [("die", "signal: SIGKILL"), ("exit", "exit status 3")])
def test_a_process_that_ends_is_replaced(task_root: Path, how: str, says: str) -> None:
    async def body(made: Pool) -> None:
        pid = await call(made)
        error = await failure(made, do=how)
        assert error["errorType"] == "Runtime.ExitError"
        assert says in error["errorMessage"]
        assert await call(made) != pid

    run(body, task_root / "log")


def test_an_invocation_over_its_timeout_is_killed(task_root: Path) -> None:
    async def body(made: Pool) -> None:
        pid = await call(made)
        error = await failure(made, do="sleep", s=PATIENCE_S)
        assert error["errorType"] == "Sandbox.Timedout"
        assert error["errorMessage"].endswith("Task timed out after 2.00 seconds")
        assert await call(made) != pid
        await until(lambda: not running([pid]))

    run(body, task_root / "log", timeout_s=2)


def test_code_that_does_not_load_is_reported_and_retried(task_root: Path) -> None:
    (task_root / "tried.py").write_text("import nothing_of_that_name")

    async def body(made: Pool) -> None:
        error = await failure(made)
        assert error["errorType"] == "Runtime.ImportModuleError"
        assert "No module named 'nothing_of_that_name'" in error["errorMessage"]
        (task_root / "tried.py").write_text(HANDLER)
        assert await call(made)

    run(body, task_root / "log")


def test_new_code_runs_after_retiring_the_processes(task_root: Path) -> None:
    async def body(made: Pool) -> None:
        old = await call(made)
        busy = asyncio.create_task(call(made, do="wait"))
        await until((task_root / "waiting").exists)
        (task_root / "tried.py").write_text("def handler(event, context):\n    return 'new code'\n")
        made.retire()
        (task_root / "free").touch()
        assert await busy == old  # an invocation in flight ends with the old code
        assert await call(made) == "new code"

    run(body, task_root / "log")


def test_the_pool_grows_up_to_its_bound(task_root: Path) -> None:
    async def body(made: Pool) -> None:
        seen: set[int] = set()
        while len(seen) < 2:  # a second one is there after a while
            seen |= set(await asyncio.gather(*(call(made, do="sleep", s=0.1) for _ in range(4))))
        seen |= set(await asyncio.gather(*(call(made, do="sleep", s=0.2) for _ in range(8))))
        assert len(seen) == 2

    run(body, task_root / "log", workers_max=2)


def test_a_caller_who_waits_too_long_is_refused(task_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(made: Pool) -> None:
        long = asyncio.create_task(call(made, do="wait"))
        await until((task_root / "waiting").exists)
        with monkeypatch.context() as hasty:
            hasty.setattr(pool, "QUEUE_S_MAX", 0.3)
            with pytest.raises(ThrottledError):
                await made.invoke(b"{}")
        (task_root / "free").touch()
        assert await long == await call(made)  # nothing was lost on the way

    run(body, task_root / "log", timeout_s=PATIENCE_S)
