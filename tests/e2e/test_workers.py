"""Tests workers. The zygote is a process that has loaded the code of all functions. A worker is a fork of the zygote,
and runs the functions. These fail, hang, die, or have many callers at once."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tally.dev.base.engine import Engine
from tally.dev.base.errors import LocalError
from tally.dev.base.options import DevOptions
from tally.dev.base.wire import Wire
from tally.dev.functions import workers
from tally.dev.functions.code import CodeVersions
from tally.dev.functions.workers import ThrottledError, Workers
from tally.dev.stack import code
from tally.dev.stack.prepared import prepare_stack
from tests.e2e.dev import ROOT, running
from tests.patience import PATIENCE_S

# The field `do` of an event says what the function does.
HANDLERS = """
import os, signal, sys, time
import counters
from tally.observe import logger
def __getattr__(name):
    if name.startswith("__"): raise AttributeError(name)
    return handler
def handler(event, context):
    match event.get("do"):
        case "raise": raise ValueError("no")
        case "die": os.kill(os.getpid(), signal.SIGKILL)
        case "exit": sys.exit(3)
        case "sleep": time.sleep(event["s"])
        case "wait":
            open(event["folder"] + "/waiting", "a").close()
            while not os.path.exists(event["folder"] + "/free"): time.sleep(0.01)
        case "parent": return os.getppid()
        case "environment": return dict(os.environ)
        case "context":
            return [context.aws_request_id, context.function_name, context.get_remaining_time_in_millis(),
                    context.invoked_function_arn, context.function_version, context.memory_limit_in_mb,
                    context.log_group_name, context.log_stream_name, context.client_context, str(context.identity)]
        case "correlate":
            before = logger.get_correlation_id()
            logger.set_correlation_id("an event")
            return before
        case "no json": return {"set": {1}, "number": float("nan"), "text": "\\ud800"}[event["value"]]
    return os.getpid()
"""


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine() as made:
        yield made


class Functions:
    """The functions of a stack, whose code is HANDLERS."""

    def __init__(self, code: CodeVersions, workers: Workers) -> None:
        self.code, self.workers = code, workers

    def with_timeout(self, timeout_s: float) -> str:
        """Adds a copy of the function `reads` with another timeout, and returns the name of the copy."""
        copy = {f"reads {timeout_s}": replace(self.workers.functions["reads"], timeout_s=timeout_s)}
        self.workers.functions = {**self.workers.functions, **copy}
        return f"reads {timeout_s}"

    async def call(self, name: str = "reads", **event: object) -> Any:
        """Returns the answer of a function to the event."""
        outcome = await self.workers.invoke(name, json.dumps(event).encode())
        assert not outcome.failed, outcome
        return json.loads(outcome.payload)

    async def failure(self, name: str = "reads", **event: object) -> Any:
        """Returns the error of a function that fails on the event."""
        outcome = await self.workers.invoke(name, json.dumps(event).encode())
        assert outcome.failed
        return json.loads(outcome.payload)


Run = Callable[..., None]


@pytest.fixture
def run(tmp_path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a test body with the functions of a stack. `workers_max`: how many workers may run. A worker runs each
    function."""
    lambdas = tmp_path / "lambdas"
    lambdas.mkdir()
    (lambdas / "handlers.py").write_text(HANDLERS)
    monkeypatch.setattr(code, "LAMBDAS", lambdas)

    def run_one(body: Callable[[Functions], Awaitable[None]], workers_max: int = 1) -> None:
        async def run_body() -> None:
            async with Wire(engine.endpoint, engine.endpoint) as wire:
                versions = CodeVersions(stack, wire)
                zygote, template = await versions.load_first(spawned)
                workers = Workers(
                    zygote, template.functions, stack.logs.resolve(), versions.restart_zygote, workers_max
                )
                try:
                    await body(Functions(versions, workers))
                finally:
                    await workers.close()
            await until(lambda: len(asyncio.all_tasks()) == 1)  # Python would warn of a task that has not ended

        with prepare_stack(DevOptions(ROOT, 0, tmp_path / "data", engine.endpoint, "*")) as (stack, spawned):
            asyncio.run(run_body())

    return run_one


async def until(condition: Callable[[], object]) -> None:
    """Waits for the condition while the event loop runs."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.01)


def test_a_function_runs_as_in_lambda(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment, the context and the answers are as in Lambda. An event sees nothing of an earlier event."""
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.example.com")
    monkeypatch.setenv("AWS_PROFILE", "mine")

    async def body(functions: Functions) -> None:
        variables = await functions.call(do="environment")
        assert variables["LAMBDA_TASK_ROOT"] == str(tmp_path / "data/task/0")
        assert (variables["AWS_LAMBDA_FUNCTION_NAME"], variables["AWS_LAMBDA_FUNCTION_MEMORY_SIZE"]) == ("reads", "512")
        assert not {"HTTP_PROXY", "AWS_PROFILE", "HOME", "TALLY_DEAD_LETTER_BUCKET"} & variables.keys()
        request_id, name, remaining_ms, arn, *_ = await functions.call(do="context")
        assert (len(request_id), name) == (36, "reads")  # a UUID
        assert arn == "arn:aws:lambda:eu-west-1:000000000000:function:reads"
        assert 0 < remaining_ms <= 15_000  # the timeout of the function `reads`
        # The one worker runs `rollup`, and then `reads`.
        assert await functions.call("rollup", do="correlate") is None
        assert await functions.call(do="correlate") is None, "the correlation id of the event before is gone"
        assert (await functions.call("rollup", do="environment"))["TALLY_DEAD_LETTER_BUCKET"]  # only consumers have it

        pid = await functions.call()
        error = await functions.failure(do="raise")
        assert (error["errorType"], error["errorMessage"]) == ("ValueError", "no")
        for value in ("set", "number", "text"):  # JSON has no such set, number or text
            assert (await functions.failure(do="no json", value=value))["errorType"] == "Runtime.MarshalError"
        assert await functions.call() == pid

    run(body)
    lines = [line for line in (tmp_path / "data/logs/reads.log").read_text().splitlines() if '"ValueError"' in line]
    assert [(json.loads(line)["level"], json.loads(line)["errorMessage"]) for line in lines] == [("ERROR", "no")]


def test_a_worker_that_ends_or_hangs_is_replaced(run: Run) -> None:
    async def body(functions: Functions) -> None:
        for end, message in (("die", "signal: SIGKILL"), ("exit", "exit status 3")):
            pid = await functions.call()
            error = await functions.failure(do=end)
            assert error["errorType"] == "Runtime.ExitError"
            assert message in error["errorMessage"]
            assert await functions.call() != pid
        pid = await functions.call()
        error = await functions.failure(functions.with_timeout(1), do="sleep", s=PATIENCE_S)
        assert error["errorType"] == "Sandbox.Timedout"
        assert error["errorMessage"].endswith("Task timed out after 1.00 seconds")
        assert await functions.call() != pid
        await until(lambda: not running([pid]))

    run(body)


def test_a_worker_that_is_killed_before_it_takes_an_event_fails_no_call(run: Run) -> None:
    """`make dev` gives such an event to another worker, because a worker that takes an event writes a byte."""

    async def body(functions: Functions) -> None:
        pid = await functions.call()
        os.kill(pid, signal.SIGSTOP)  # the stopped worker takes no event
        waiting = asyncio.create_task(functions.call())
        await asyncio.sleep(0)
        os.kill(pid, signal.SIGKILL)
        assert await waiting != pid
        os.kill(idle := await functions.call(), signal.SIGKILL)  # the worker has answered, and has no event
        assert await functions.call() != idle
        zygote = await functions.call(do="parent")
        os.kill(zygote, signal.SIGKILL)
        await until(lambda: not running([zygote]))
        assert await functions.call() not in (pid, idle), "a new zygote forks workers with the same code"

    run(body)


def test_new_code_runs_when_it_loads_without_an_error(run: Run, tmp_path: Path) -> None:
    counters = (ROOT / "lambdas/counters.py").read_bytes()
    handlers = tmp_path / "lambdas/handlers.py"

    async def body(functions: Functions) -> None:
        old = await functions.call()
        slow = functions.with_timeout(PATIENCE_S)
        busy = asyncio.create_task(functions.call(slow, do="wait", folder=str(tmp_path)))
        await until((tmp_path / "waiting").exists)
        with pytest.raises(LocalError, match=r"^.*/lambdas/counters\.py, line \d+: SyntaxError: "):
            await functions.code.load_next(b"def")
        handlers.write_text("import nothing_of_that_name")
        with pytest.raises(LocalError, match="No module named 'nothing_of_that_name'"):
            await functions.code.load_next(counters)
        handlers.write_text("def __getattr__(name):\n    return lambda event, context: 'new code'\n")
        zygote, _ = await functions.code.load_next(counters)
        functions.workers.replace(zygote, functions.workers.functions)
        (tmp_path / "free").touch()
        assert await busy == old  # the invocation that began with the old code ends with the old code
        assert await functions.call() == "new code"

    run(body)


def test_the_number_of_workers_grows_up_to_its_bound(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(functions: Functions) -> None:
        pids: set[int] = set()
        while len(pids) < 2:  # the second worker starts after some calls
            pids |= set(await asyncio.gather(*(functions.call(do="sleep", s=0.1) for _ in range(4))))
        pids |= set(await asyncio.gather(*(functions.call(do="sleep", s=0.2) for _ in range(8))))
        assert len(pids) == 2
        slow = functions.with_timeout(PATIENCE_S)
        long_calls = [asyncio.create_task(functions.call(slow, do="wait", folder=str(tmp_path))) for _ in range(2)]
        await until((tmp_path / "waiting").exists)
        monkeypatch.setattr(workers, "HANG_S", PATIENCE_S)  # no worker counts as hanging, so none is added
        with monkeypatch.context() as hasty:
            hasty.setattr(workers, "QUEUE_S_MAX", 0.3)
            with pytest.raises(ThrottledError):
                await functions.workers.invoke("reads", b"{}")
        monkeypatch.setattr(workers, "HANG_S", 0.1)
        assert await functions.call() not in pids, "one worker above the bound, because all other workers hang"
        (tmp_path / "free").touch()
        assert set(await asyncio.gather(*long_calls)) == pids  # no call was lost

    run(body, workers_max=2)
