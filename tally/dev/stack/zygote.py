"""The processes of the functions. This one imports their code once, says what it describes, and forks workers.

Each worker can run any function, one event at a time: an event and a context to an answer, both JSON, as in Lambda.
It runs as a program in the folder of the handlers, and imports nothing else of `tally.dev`: so new code needs a new
zygote, and what does not import stays apart from the server.

It speaks lines of JSON over the socket whose descriptor is its argument. It gets where functions run; it says what the
code describes; it gets the variables of each function; it says that it is ready. From then on each byte that it gets
comes with a socket, for one more worker; and it says how each worker ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import importlib
import json
import os
import signal
import socket
import struct
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

HEAD = struct.Struct(">II")  # before an event: the bytes of its head, and of itself
TAKEN = b"+"  # an event: a worker that dies before has not begun with it
ANSWER = struct.Struct(">BI")  # before an answer: whether it is an error, and its bytes
_PR_SET_PDEATHSIG = 1  # prctl(2)
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None
Json = dict[str, Any]
Handler = Callable[[Any, Any], Any]


class LambdaContext:
    """What Lambda passes beside the event."""

    function_version = "$LATEST"
    log_stream_name = "local"
    client_context = identity = None

    def __init__(self, head: Json) -> None:
        self.aws_request_id, self._deadline_ms = head["id"], head["deadline_ms"]
        self.function_name, self.memory_limit_in_mb = head["function"], head["memory_mb"]
        self.invoked_function_arn, self.log_group_name = head["arn"], f"/aws/lambda/{head['function']}"

    def get_remaining_time_in_millis(self) -> int:
        """Until the worker is killed."""
        return max(0, int(self._deadline_ms - time.time() * 1000))


def main() -> None:
    """Fork workers until the server ends."""
    control = socket.socket(fileno=int(sys.argv[1]))
    lines = control.makefile("rb")
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # a worker may be killed

    def say(**what: Any) -> None:
        with contextlib.suppress(OSError):  # the server is gone: so is this process, soon
            control.sendall(json.dumps(what).encode() + b"\n")

    sys.path[0] = os.getcwd()  # the folder of the handlers, and not this file's
    try:
        declared, document = load_code(json.loads(lines.readline()))
        say(document=document)
        environments = json.loads(lines.readline() or b"{}")
        handlers = make_handlers(declared, environments)
    except Exception as error:  # whatever a person's code raises
        traceback.print_exc()
        say(error=f"{type(error).__name__}: {error}".removeprefix("ConfigurationError: "))
        return
    gc.collect()
    gc.freeze()  # what exists at this point is shared with the workers
    signal.signal(signal.SIGCHLD, lambda *_: report_ended(say))
    say(ready=True)
    while True:
        got, sockets, *_ = socket.recv_fds(control, 1, 1)
        if not got:
            return
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            lines.close()
            control.close()
            die_with_parent()
            run_events(socket.socket(fileno=sockets[0]), handlers, environments)
            os._exit(0)
        os.close(sockets[0])


def load_code(where: Json) -> tuple[Any, Json]:
    """What the file of counters declares, and what the code describes."""
    from tally.api.operation import UserVisibility
    from tally.contract import deployment
    from tally.contract.declarations import Declarations
    from tally.contract.deployment_document import deployment_document
    from tally.contract.document import document_json
    from tally.errors import ConfigurationError
    from tally.operations import health
    from tally.settings import TeamTable

    kinds = [one.value for one in UserVisibility]
    if (likers := where["place"]["likers"]) not in kinds:
        raise ConfigurationError(f"TALLY_LIKERS_VISIBLE is {likers!r}: it must be one of {', '.join(kinds)}")
    declared = Declarations.load(Path("counters.py").resolve())
    forms = deployment.table_schemas(declared.counters.values())
    tables, streams = ({one: where["place"][name][one.value] for one in forms} for name in ("tables", "streams"))
    place = deployment.Surroundings(
        **{**where["place"], "tables": tables, "streams": streams, "likers": UserVisibility(likers)},
        team_tables={name: TeamTable(name, "") for name in declared.team_tables},  # the server knows which are there
    )
    health.OPENAPI_FILE.write_text(
        document_json(declared.operations, declared.counters, likers=place.likers), encoding="utf-8"
    )
    return declared, deployment_document(declared, place, where["console"], where["console_client"])


def make_handlers(declared: Any, environments: Mapping[str, Mapping[str, str]]) -> dict[str, Handler]:
    """The handlers, each made with the variables of its function and no others, as at its cold start."""
    from tally.dynamo import client

    check_forms(declared, next(iter(environments.values())))
    # Each function has a client of its own in Lambda. Here one is enough for all: a connection has no state.
    client.dynamodb_client = functools.cache(client.dynamodb_client)
    handlers = importlib.import_module("handlers")  # handlers.py in the folder that this process runs in
    by_name: dict[str, Handler] = {}
    for name, environment in environments.items():
        set_environment(environment)
        by_name[name] = getattr(handlers, name)
    return by_name


def check_forms(declared: Any, environment: Mapping[str, str]) -> None:
    """Raise ConfigurationError if a counter is declared in another form than it has counted in here."""
    from tally.dynamo.client import Store, dynamodb_client
    from tally.errors import ConfigurationError, TallyError
    from tally.settings import Settings
    from tally.streams import forms

    set_environment(environment)
    with contextlib.closing(dynamodb_client()) as own:  # its connections are no worker's
        try:
            forms.check(forms.noted(Store(own, Settings.from_environment())), declared.counters)
        except TallyError as error:
            raise ConfigurationError(f"{error}, or begin with other data (TALLY_DATA)") from None


def set_environment(environment: Mapping[str, str]) -> None:
    """Have these variables and no others."""
    os.environ.clear()
    os.environ.update(environment)


def report_ended(say: Callable[..., None]) -> None:
    """Say how workers ended."""
    with contextlib.suppress(ChildProcessError):
        while (process := os.waitpid(-1, os.WNOHANG)) != (0, 0):
            pid, status = process
            say(pid=pid, status=os.waitstatus_to_exitcode(status))


def run_events(
    connection: socket.socket, handlers: Mapping[str, Handler], environments: Mapping[str, Mapping[str, str]]
) -> None:
    """Run events until the server closes the connection."""
    from tally import observe

    events, logs, last = connection.makefile("rb"), dict[str, int](), ""
    connection.sendall(struct.pack(">I", os.getpid()))
    while sizes := events.read(HEAD.size):
        head_bytes, event_bytes = HEAD.unpack(sizes)
        head, event = json.loads(events.read(head_bytes)), events.read(event_bytes)
        connection.sendall(TAKEN)
        name, log = head["function"], head["log"]
        if log not in logs:
            logs[log] = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        if name != last:
            last = name
            set_environment(environments[name])
            for number in (1, 2):
                os.dup2(logs[log], number)
        observe.logger.set_correlation_id(None)  # it is of the event before, perhaps of another function
        failed, answer = answer_event(handlers[name], event, LambdaContext(head))
        connection.sendall(ANSWER.pack(failed, len(answer)) + answer)


def answer_event(handler: Handler, event: bytes, context: LambdaContext) -> tuple[bool, bytes]:
    """Whether it failed, and its answer as JSON. Lambda's client refuses what is no JSON, and so does this."""
    try:
        answer = handler(json.loads(event), context)
    except Exception as error:
        return True, report(type(error).__name__, error, context)
    try:
        return False, json.dumps(answer, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        return True, report("Runtime.MarshalError", f"Unable to marshal response: {error}", context)


def report(kind: str, error: object, context: LambdaContext) -> bytes:
    """An error as Lambda answers it, and in the log."""
    document = {
        "errorMessage": str(error),
        "errorType": kind,
        "requestId": context.aws_request_id,
        "stackTrace": traceback.format_exc().splitlines(),
    }
    print(json.dumps({"level": "ERROR", **document}), file=sys.stderr)
    return json.dumps(document).encode()


def die_with_parent() -> None:
    """Let Linux kill this process when its parent dies. It works in a child before exec, too."""
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    main()
