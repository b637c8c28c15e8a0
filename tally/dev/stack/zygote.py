"""The zygote: it imports the functions' code once, describes the stack, and forks the workers that run functions.

A worker can run any function, one event at a time. Event and answer are JSON, as in Lambda. The zygote is a process of
its own, so code that does not load cannot harm the server. Changed code needs a new zygote. Deployed functions lack
`tally.dev`, so this file imports nothing else of it.

The server and the zygote exchange lines of JSON over the socket whose descriptor is the zygote's argument:
the server sends the `Surroundings`; the zygote sends the description of the stack; the server sends the variables of
each function; the zygote says that it is ready. After that, each byte from the server brings a socket for one more
worker, and the zygote reports how each worker ended.
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

HEAD = struct.Struct(">II")  # before each event: how many bytes the head (for LambdaContext) and the event have
TAKEN = b"+"  # the worker has begun with the event; without this byte, another worker can run the event
ANSWER = struct.Struct(">BI")  # before an answer: whether the answer is an error, and how many bytes it has
_PR_SET_PDEATHSIG = 1  # prctl(2)
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None
Json = dict[str, Any]
Handler = Callable[[Any, Any], Any]


class LambdaContext:
    """The context that Lambda passes with an event."""

    function_version = "$LATEST"
    log_stream_name = "local"
    client_context = identity = None

    def __init__(self, head: Json) -> None:
        self.aws_request_id, self._deadline_ms = head["id"], head["deadline_ms"]
        self.function_name, self.memory_limit_in_mb = head["function"], head["memory_mb"]
        self.invoked_function_arn, self.log_group_name = head["arn"], f"/aws/lambda/{head['function']}"

    def get_remaining_time_in_millis(self) -> int:
        """Returns the time until the worker is killed."""
        return max(0, int(self._deadline_ms - time.time() * 1000))


def main() -> None:
    """Fork workers until the server ends."""
    control = socket.socket(fileno=int(sys.argv[1]))
    lines = control.makefile("rb")
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # a worker may be killed before it flushes

    def send(**message: Any) -> None:
        with contextlib.suppress(OSError):  # the server has ended, and this process will end, too
            control.sendall(json.dumps(message).encode() + b"\n")

    sys.path[0] = os.getcwd()  # the folder of the handlers instead of this file's folder
    try:
        declared, document = load_code(json.loads(lines.readline()))
        send(document=document)
        environments = json.loads(lines.readline() or b"{}")
        handlers = make_handlers(declared, environments)
    except Exception as error:  # a person's code may raise any exception
        traceback.print_exc()
        send(error=f"{type(error).__name__}: {error}".removeprefix("ConfigurationError: "))
        return
    gc.collect()
    gc.freeze()  # the workers share the objects that exist at this point
    signal.signal(signal.SIGCHLD, lambda *_: report_ended(send))
    send(ready=True)
    while True:
        message, sockets, *_ = socket.recv_fds(control, 1, 1)
        if not message:
            return
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            lines.close()
            control.close()
            die_with_parent()
            run_events(socket.socket(fileno=sockets[0]), handlers, environments)
            os._exit(0)
        os.close(sockets[0])


def load_code(surroundings: Json) -> tuple[Any, Json]:
    """Returns the declarations in counters.py, and the description of the stack. Writes the API document to a file."""
    from tally.api.operation import UserVisibility
    from tally.contract import deployment
    from tally.contract.declarations import Declarations
    from tally.contract.deployment_document import deployment_document
    from tally.contract.document import document_json
    from tally.errors import ConfigurationError
    from tally.operations import health
    from tally.settings import TeamTable

    visibilities = [one.value for one in UserVisibility]
    if (likers := surroundings["stack"]["likers_visible"]) not in visibilities:
        raise ConfigurationError(f"TALLY_LIKERS_VISIBLE is {likers!r}: it must be one of {', '.join(visibilities)}")
    declared = Declarations.load(Path("counters.py").resolve())
    schemas = deployment.table_schemas(declared.counters.values())
    values = surroundings["stack"]
    tables, streams = ({one: values[field][one.value] for one in schemas} for field in ("tables", "streams"))
    parsed = deployment.Surroundings(
        **{**values, "tables": tables, "streams": streams, "likers_visible": UserVisibility(likers)},
        team_tables={name: TeamTable(name, "") for name in declared.team_tables},  # the server adds their streams
    )
    openapi = document_json(declared.operations, declared.counters, likers_visible=parsed.likers_visible)
    health.OPENAPI_FILE.write_text(openapi, encoding="utf-8")
    return declared, deployment_document(declared, parsed, surroundings["console"], surroundings["console_client"])


def make_handlers(declared: Any, environments: Mapping[str, Mapping[str, str]]) -> dict[str, Handler]:
    """Returns the handlers by name. Makes each handler with the variables of its function only, as at a cold start."""
    from tally.dynamo import client

    check_fingerprints(declared, next(iter(environments.values())))
    # In Lambda each function has a client of its own. Here all share one client, because a connection has no state.
    client.dynamodb_client = functools.cache(client.dynamodb_client)
    handlers = importlib.import_module("handlers")  # handlers.py in the folder that this process runs in
    by_name: dict[str, Handler] = {}
    for name, environment in environments.items():
        set_environment(environment)
        by_name[name] = getattr(handlers, name)
    return by_name


def check_fingerprints(declared: Any, environment: Mapping[str, str]) -> None:
    """Raise ConfigurationError if the declaration of a counter does not fit its stored data."""
    from tally.dynamo.client import Store, dynamodb_client
    from tally.errors import ConfigurationError, TallyError
    from tally.settings import Settings
    from tally.streams import fingerprints

    set_environment(environment)
    with contextlib.closing(dynamodb_client()) as client:  # so that no worker inherits a connection
        try:
            fingerprints.check(fingerprints.read_all(Store(client, Settings.from_environment())), declared.counters)
        except TallyError as error:
            raise ConfigurationError(f"{error}, or start with another data folder (TALLY_DATA)") from None


def set_environment(environment: Mapping[str, str]) -> None:
    """Replace all variables of this process by `environment`."""
    os.environ.clear()
    os.environ.update(environment)


def report_ended(send: Callable[..., None]) -> None:
    """Report to the server the exit status of each worker that has ended."""
    with contextlib.suppress(ChildProcessError):
        while (process := os.waitpid(-1, os.WNOHANG)) != (0, 0):
            pid, status = process
            send(pid=pid, status=os.waitstatus_to_exitcode(status))


def run_events(
    connection: socket.socket, handlers: Mapping[str, Handler], environments: Mapping[str, Mapping[str, str]]
) -> None:
    """Run events until the server closes the connection."""
    from tally import observe

    events, logs, last_name = connection.makefile("rb"), dict[str, int](), ""
    connection.sendall(struct.pack(">I", os.getpid()))
    while sizes := events.read(HEAD.size):
        head_bytes, event_bytes = HEAD.unpack(sizes)
        head, event = json.loads(events.read(head_bytes)), events.read(event_bytes)
        connection.sendall(TAKEN)
        name, log = head["function"], head["log"]
        if log not in logs:
            logs[log] = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        if name != last_name:
            last_name = name
            set_environment(environments[name])
            for number in (1, 2):
                os.dup2(logs[log], number)
        observe.logger.set_correlation_id(None)  # not the id of the last event, perhaps of another function
        failed, answer = answer_event(handlers[name], event, LambdaContext(head))
        connection.sendall(ANSWER.pack(failed, len(answer)) + answer)


def answer_event(handler: Handler, event: bytes, context: LambdaContext) -> tuple[bool, bytes]:
    """Returns whether the handler failed, and the answer or the error as JSON. As in Lambda, an answer must be JSON."""
    try:
        answer = handler(json.loads(event), context)
    except Exception as error:
        return True, report(type(error).__name__, error, context)
    try:
        return False, json.dumps(answer, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        return True, report("Runtime.MarshalError", f"Unable to marshal response: {error}", context)


def report(error_type: str, error: object, context: LambdaContext) -> bytes:
    """Logs an error, and returns it as Lambda answers it."""
    document = {
        "errorMessage": str(error),
        "errorType": error_type,
        "requestId": context.aws_request_id,
        "stackTrace": traceback.format_exc().splitlines(),
    }
    print(json.dumps({"level": "ERROR", **document}), file=sys.stderr)
    return json.dumps(document).encode()


def die_with_parent() -> None:
    """Let Linux kill this process when its parent dies. A forked child calls this, or Popen as its `preexec_fn`."""
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    main()
