"""Takes the port and the data folder, and starts the engine and the zygote, which imports code and forks workers."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import platform
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from ..base import objects
from ..base.account import ACCOUNT, REGION
from ..base.dynamodb_local import choose_engine
from ..base.engine import Engine
from ..base.errors import LocalError
from ..base.options import DevOptions
from ..base.words import DEV
from . import code
from .code import Spawned
from .mappings import StreamMapping
from .template import Template

STACK, SERVICE = "Tally-local", "Tally-dev"  # the stack's name; `service` of its metrics and logs
TABLES = {name: f"{STACK}-{name.capitalize()}Table" for name in ("counts", "receipts", "ledger", "salts")}
"""The names of the tables on the engine. Stream shard ids contain them, and boto3 rejects ids below 28 characters."""
BUCKET, BUS = "tally-local-deadletterbucket", "tally-local"
CONSOLE_CLIENT = "console"  # the client id of people who sign in to the console
AUDIENCE = ("programs", CONSOLE_CLIENT)  # a token is accepted if its `aud` or `client_id` is one of these
LOG_BYTES_MAX = 20 * 1024 * 1024  # at the next start, a larger log becomes `.log.old`


@dataclass
class PreparedStack:
    """A prepared stack. `template` is empty until the zygote has described the stack."""

    options: DevOptions
    listener: socket.socket  # serves the HTTP API
    endpoint: str  # the address of DynamoDB
    engine: Engine | None  # None: the person started DynamoDB
    template: Template = field(default_factory=lambda: Template({}, ()))

    @property
    def port(self) -> int:
        """The port of the HTTP API."""
        return int(self.listener.getsockname()[1])

    @property
    def url(self) -> str:
        """The URL of the HTTP API."""
        return f"http://localhost:{self.port}"

    @property
    def logs(self) -> Path:
        return self.options.data / "logs"

    @property
    def objects_url(self) -> str:
        """The URL of the object store, with an IP address, because S3 clients prefix a host name with the bucket."""
        return f"http://127.0.0.1:{self.port}{objects.PREFIX}"

    def folder(self, version: int) -> Path:
        """The folder of a version of the code."""
        return self.options.data.resolve() / "task" / str(version)

    def write_folder(self, version: int, counters: bytes) -> Path:
        """Write the folder of a version of the code, and return it. Raises LocalError."""
        try:
            return code.write_folder(counters, self.folder(version))
        except OSError as error:
            raise LocalError(f"the data folder {self.options.data} is not writable: {error.strerror}") from None

    def spawn(self, folder: Path) -> Spawned:
        """Start a zygote of the code in the folder."""
        self.logs.mkdir(parents=True, exist_ok=True)
        return code.spawn(folder, self.logs.resolve() / "import.log", self.variables, self.surroundings)

    @property
    def variables(self) -> dict[str, str]:
        """The variables of the zygote and of every function: as Lambda sets them, with this machine's endpoints."""
        return {
            "PATH": os.defpath,
            "LANG": "en_US.UTF-8",
            "TZ": ":UTC",
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_ACCESS_KEY_ID": "local",
            "AWS_SECRET_ACCESS_KEY": "local",
            "AWS_CONFIG_FILE": os.devnull,  # Lambda has no profile, so a person's profile must not count
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_EXECUTION_ENV": f"AWS_Lambda_python{sys.version_info.major}.{sys.version_info.minor}",
            "AWS_LAMBDA_FUNCTION_VERSION": "$LATEST",
            "AWS_LAMBDA_INITIALIZATION_TYPE": "on-demand",
            "AWS_LAMBDA_LOG_FORMAT": "JSON",
            "POWERTOOLS_SERVICE_NAME": SERVICE,  # tally/observe.py reads it in the zygote, when the code is imported
            "AWS_ENDPOINT_URL_DYNAMODB": self.endpoint,
            "AWS_ENDPOINT_URL_DYNAMODB_STREAMS": self.options.streams_endpoint or self.endpoint,
            "AWS_ENDPOINT_URL_S3": self.objects_url,
            "AWS_ENDPOINT_URL_EVENTBRIDGE": f"http://127.0.0.1:{self.port}/dev/events",
            "TALLY_MINUTE_S": str(self.options.minute_s),
            "TALLY_LOCAL_PORT": str(self.port),
            "no_proxy": "*",  # else a forked process asks macOS for proxies, and macOS may kill the process
        }

    @property
    def surroundings(self) -> dict[str, Any]:
        """What the zygote needs to describe the stack: `Surroundings` of tally/contract, and the console's settings."""
        console = {
            "stage": "dev",
            "stack": STACK,
            "region": REGION,
            "sign_in": {"kind": "name"},
            "try_it": True,
            "docs": "docs",
        }
        return {
            "stack": {
                "service": SERVICE,
                "version": "dev",
                "tables": TABLES,
                "streams": {name: stream_stand_in(table) for name, table in TABLES.items()},
                "dead_letters": BUCKET,
                "event_bus": BUS,
                "page_hosts": self.options.page_hosts,
                "likers_visible": self.options.likers_visible,
            },
            "console": json.dumps(console),
            "console_client": CONSOLE_CLIENT,
        }

    @property
    def scaled_mappings(self) -> list[StreamMapping]:
        """The event source mappings. If `options.minute_s` is half of 60 s, batch windows are half as long, too."""
        return [one.scaled_to(self.options.minute_s) for one in self.template.mappings]

    @property
    def transact(self) -> dict[str, Any]:
        """The TALLY_TRANSACT that a team's function needs to change counters itself, with the minute of `options`."""
        settings = self.template.transact.get("settings", {})
        return {**self.template.transact, "settings": {**settings, "TALLY_MINUTE_S": str(self.options.minute_s)}}

    def describe_parts(self) -> dict[str, object]:
        """The endpoints and names of the stack's parts, for /dev/stack."""
        return {
            "dynamodb": self.endpoint,
            "s3": self.objects_url,
            **TABLES,
            "bucket": BUCKET,
            "minute_s": self.options.minute_s,
            "transact": self.transact,
            "team_tables": self.template.team_tables,
            "url": self.url,
            "app": str(self.options.app.resolve()),
            "outputs": {
                **self.template.outputs,
                "Stage": "dev",
                "ApiUrl": self.url,
                "ConsoleUrl": f"{self.url}/console",
                "Runtime": f"python{platform.python_version()}",
            },
        }


def stream_stand_in(table: str) -> str:
    """Returns a stand-in for the ARN of a table's stream. After the engine has made the table, the ARN replaces it."""
    return f"arn:aws:dynamodb:{REGION}:{ACCOUNT}:table/{table}/stream/local"


@contextlib.contextmanager
def prepare_stack(options: DevOptions) -> Iterator[tuple[PreparedStack, Spawned]]:
    """Take the port and the data folder, let a zygote import the code, and start the engine. Raises LocalError."""
    with contextlib.ExitStack() as exits:
        listener = exits.enter_context(contextlib.closing(_listen(options.port)))
        exits.enter_context(_lock_folder(options.data))
        engine = None if options.endpoint else choose_engine(options.data, options.engine)
        stack = PreparedStack(options, listener, engine.endpoint if engine else str(options.endpoint), engine)
        try:
            counters = options.counters.read_bytes()
        except OSError as error:
            raise LocalError(f"{options.counters} cannot be read: {error.strerror}") from None
        process, control = spawned = stack.spawn(stack.write_folder(0, counters))  # the zygote, and the socket to it
        exits.callback(process.wait)
        exits.callback(process.kill)
        exits.callback(control.close)
        if engine:
            exits.enter_context(engine)
        yield stack, spawned


def _listen(port: int) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise LocalError(f"port {port} cannot be used ({error.strerror}): set PORT to another port") from None
    return listener


@contextlib.contextmanager
def _lock_folder(data: Path) -> Iterator[None]:
    """Lock the data folder, because two engines must not use one data file."""
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
            text = f"another {DEV} (process {lock.read().strip() or '?'}) uses the data folder {data}"
            raise LocalError(f"{text}: stop it, or set TALLY_DATA to another folder") from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def open_log(path: Path) -> IO[Any]:
    """Open a log to append lines of text. Rename a large log first. Raises LocalError."""
    try:
        rotate(path)
        return path.open("a", buffering=1)
    except OSError as error:
        raise LocalError(f"{path} is not writable: {error.strerror}") from None


def rotate(path: Path) -> None:
    """Make the folder of a log, and rename the log if it is large."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and path.stat().st_size > LOG_BYTES_MAX:
        path.replace(path.with_suffix(".log.old"))
