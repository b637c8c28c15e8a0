"""Prepares a stack before it serves: port, data folder, template, engine and tables."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import platform
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from ..base import objects
from ..base.account import REGION
from ..base.engine import Engine
from ..base.errors import LocalError
from ..base.options import Options
from ..base.words import DEV
from . import code, fitting, tables
from .cloudformation import STACK
from .template import Template, synthesized

LOG_BYTES_MAX = 20 * 1024 * 1024  # at the next start, a larger log becomes `.log.old`


@dataclass(frozen=True)
class Stack:
    """A prepared stack: its template, its options, its engine, and the socket to serve on."""

    template: Template
    options: Options
    listener: socket.socket
    endpoint: str
    engine: Engine | None
    code: Path
    """The folder of the handlers: the sources, and the counters that run."""

    @property
    def url(self) -> str:
        """The URL of the HTTP API."""
        return f"http://localhost:{self.listener.getsockname()[1]}"

    @property
    def logs(self) -> Path:
        """The folder of the logs."""
        return self.options.data / "logs"

    @property
    def store(self) -> str:
        """The URL of the object store. It has an IP address: S3 clients would prefix a name with the bucket."""
        return f"http://127.0.0.1:{self.listener.getsockname()[1]}{objects.PREFIX}"

    @property
    def variables(self) -> dict[str, str]:
        """The variables that functions have here and not on AWS."""
        return {
            "AWS_ENDPOINT_URL_DYNAMODB": self.endpoint,
            "AWS_ENDPOINT_URL_DYNAMODB_STREAMS": self.options.streams_endpoint or self.endpoint,
            "AWS_ENDPOINT_URL_S3": self.store,
            "TALLY_PAGE_HOSTS": self.options.page_hosts,
            "TALLY_MINUTE_S": str(self.options.minute_s),
            "TALLY_LOCAL_PORT": str(self.listener.getsockname()[1]),
            "TALLY_CONSOLE": json.dumps(
                {"stage": "dev", "stack": STACK, "region": REGION, "sign_in": {"kind": "name"}, "try_it": True}
            ),
        }

    @property
    def tables(self) -> dict[str, str | None]:
        """The tables' names on the engine, by the names that Tally uses."""
        return {
            name: next((one for one in self._named(f"TALLY_{name.upper()}_TABLE") if one in self.template.tables), None)
            for name in ("counts", "receipts", "ledger")
        }

    def check_counters(self) -> None:
        """Raise LocalError if a counter is declared in another form than it has counted in here."""
        fitting.check(self.options.counters, self.tables, self.endpoint)

    @property
    def console_client(self) -> str:
        """The client of the pool that people sign in to the console with; empty with an issuer of one's own."""
        return next(iter(self._named("TALLY_CONSOLE_CLIENT")), "")

    def where(self) -> dict[str, object]:
        """The endpoints and names of the stack's parts, for /dev/stack."""
        dead_letters = self._named("TALLY_DEAD_LETTER_BUCKET") or list(self.template.buckets)
        return {
            "dynamodb": self.endpoint,
            "s3": self.store,
            **self.tables,
            "bucket": next(iter(dead_letters), None),
            "minute_s": self.options.minute_s,
            "url": self.url,
            "app": str(self.options.app.resolve()),
            "outputs": {
                **self.template.outputs,
                "ApiUrl": self.url,
                "ConsoleUrl": f"{self.url}/console",
                "Runtime": f"python{platform.python_version()}",
            },
        }

    def _named(self, variable: str) -> list[str]:
        """The values of a variable in the functions that have it."""
        functions = self.template.functions.values()
        return [one.environment[variable] for one in functions if variable in one.environment]


@contextlib.contextmanager
def prepared(options: Options) -> Iterator[Stack]:
    """Take the port and the data folder, synthesize, start the engine, create the tables. Raises LocalError."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(contextlib.closing(_listen(options.port)))
        stack.enter_context(_locked(options.data))
        template = template_of(options)
        handlers = _code(options)
        engine = None if options.endpoint else stack.enter_context(Engine(options.data / "engine.db"))
        endpoint = engine.endpoint if engine else str(options.endpoint)
        template = template.with_streams(tables.create(template.tables.values(), endpoint))
        made = Stack(template, options, listener, endpoint, engine, handlers)
        made.check_counters()
        yield made


def template_of(options: Options) -> Template:
    """The stack of the app, with the routes that its code declares now. Raises LocalError."""
    if not options.packaged:
        return synthesized(options.app, options.context)
    from . import packaged  # it reads what only the package brings

    return packaged.template(options.app, options.context)


def _code(options: Options) -> Path:
    """The folder of the handlers, for the processes of the functions. Raises LocalError."""
    try:
        return code.laid_out(options.counters, options.data.resolve() / "task")
    except OSError as error:
        raise LocalError(f"the data folder {options.data} is not writable: {error.strerror}") from None


def _listen(port: int) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise LocalError(f"port {port} cannot be used ({error.strerror}): set PORT to another one") from None
    return listener


@contextlib.contextmanager
def _locked(data: Path) -> Iterator[None]:
    """Lock the data folder: two engines must not share a file."""
    try:
        data.mkdir(parents=True, exist_ok=True)
        lock = (data / "lock").open("a+")
    except OSError as error:
        raise LocalError(f"the data folder {data} is not writable: {error.strerror}") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.seek(0)
            raise LocalError(
                f"another {DEV} (process {lock.read().strip() or '?'}) uses the data folder {data}:"
                " stop it, or set TALLY_DATA to another folder"
            ) from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def open_log(path: Path) -> IO[Any]:
    """Open a log to append lines of text. Rename a large one first. Raises LocalError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and path.stat().st_size > LOG_BYTES_MAX:
            path.replace(path.with_suffix(".log.old"))
        return path.open("a", buffering=1)
    except OSError as error:
        raise LocalError(f"{path} is not writable: {error.strerror}") from None
