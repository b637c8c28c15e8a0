"""The options of `make dev`: its command line and environment."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from .errors import LocalError
from .words import DEV

PORT_DEFAULT = "8080"
DATA_DEFAULT = ".tally"
COUNTERS = "counters.py"
MINUTE_DEFAULT_S = 3  # 60 on AWS. Shorter, so that drift appears soon, but streams need 2 s to deliver
MINUTE_S_MAX = 60
DYNAMODB_LOCAL = "dynamodb-local"  # a value of ENGINE, and the name of the folder in the user's cache
_ENDPOINT = re.compile(r"https?://([A-Za-z0-9._-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?(/.*)?")
VARIABLES = (
    f"ENGINE: {DYNAMODB_LOCAL}, to run on AWS's DynamoDB Local (Java 17) instead of the embedded engine."
    " AWS_ENDPOINT_URL_DYNAMODB: a DynamoDB engine of your own to use instead."
    " AWS_ENDPOINT_URL_DYNAMODB_STREAMS: the endpoint of its streams, if it differs."
    f" TALLY_MINUTE_S: the length of a minute of the ledger in seconds, {MINUTE_S_MAX} on AWS ({MINUTE_DEFAULT_S})."
    " TALLY_PAGE_HOSTS: count visits of these hosts only, separated by commas (any)."
    " TALLY_LIKERS_VISIBLE: who may see the users that like a post: anyone, signedIn or nobody (anyone)."
    " TALLY_TABLES: your own tables on that engine whose items counters count, separated by commas."
    " A table that you create later is read within seconds."
)


@dataclass(frozen=True)
class DevOptions:
    """The options of one run of `make dev`."""

    app: Path
    """The folder of the app: a checkout or, with the package, the folder of counters.py."""
    port: int
    """0: any free port."""
    data: Path
    endpoint: str | None
    """The address of a DynamoDB engine to use; None: start an engine."""
    page_hosts: str  # the hosts whose visits count, separated by commas; *: all
    verbose: bool = False
    minute_s: int = MINUTE_DEFAULT_S
    """The length of a minute of the ledger. Schedules run as often in this minute as on AWS in 60 s."""
    streams_endpoint: str | None = None
    """The address of the engine's streams; None: `endpoint`."""
    likers_visible: str = "anyone"
    """Who may see the users that like a post: `likersVisible` of a deployment."""
    team_tables: tuple[str, ...] = ()
    """The team tables whose streams are read. A counter names a table as the engine does."""
    engine: str = ""
    """DYNAMODB_LOCAL, or empty: the embedded engine if it has a package for this platform, else DynamoDB Local."""

    @cached_property
    def is_packaged(self) -> bool:
        """Whether counters.py is in the folder itself, as after `tally init`. Cached, because an editor may remove the
        file for a moment."""
        return (self.app / COUNTERS).is_file()

    @property
    def counters(self) -> Path:
        """The file that declares the counters."""
        return self.app / COUNTERS if self.is_packaged else self.app / "lambdas" / COUNTERS

    @classmethod
    def read(cls, arguments: Sequence[str], environment: Mapping[str, str], app: Path) -> DevOptions:
        """Read the command line, then the environment. `app` is the folder of the app. Raises LocalError."""
        parser = argparse.ArgumentParser(
            prog=DEV.strip("`"), description="Run Tally on this machine.", epilog=VARIABLES
        )
        add_arguments(parser)
        args = parser.parse_args(arguments)
        port = args.port or environment.get("PORT") or PORT_DEFAULT
        if not (port.isascii() and port.isdigit() and int(port) <= 65535):
            raise LocalError(f"the port is {port!r}: it must be a number from 0 to 65535")
        minute_s = environment.get("TALLY_MINUTE_S") or str(MINUTE_DEFAULT_S)
        if not (minute_s.isascii() and minute_s.isdigit() and 1 <= int(minute_s) <= MINUTE_S_MAX):
            raise LocalError(f"TALLY_MINUTE_S is {minute_s!r}: it must be a whole number from 1 to {MINUTE_S_MAX}")
        if (engine := environment.get("ENGINE", "")) not in ("", DYNAMODB_LOCAL):
            raise LocalError(f"ENGINE is {engine!r}: it must be {DYNAMODB_LOCAL}, or nothing for the embedded engine")
        for name in ("AWS_ENDPOINT_URL_DYNAMODB", "AWS_ENDPOINT_URL_DYNAMODB_STREAMS"):
            if (url := environment.get(name)) and not _ENDPOINT.fullmatch(url):
                raise LocalError(f"{name} is {url!r}: it must be an address, like http://localhost:8000")
        return cls(
            app=app,
            port=int(port),
            data=Path(args.data or environment.get("TALLY_DATA") or DATA_DEFAULT),
            endpoint=environment.get("AWS_ENDPOINT_URL_DYNAMODB") or None,
            page_hosts=environment.get("TALLY_PAGE_HOSTS") or "*",
            verbose=args.verbose,
            minute_s=int(minute_s),
            streams_endpoint=environment.get("AWS_ENDPOINT_URL_DYNAMODB_STREAMS") or None,
            likers_visible=environment.get("TALLY_LIKERS_VISIBLE") or "anyone",
            team_tables=tuple(filter(None, map(str.strip, environment.get("TALLY_TABLES", "").split(",")))),
            engine=engine,
        )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command line."""
    parser.add_argument("--port", help="port of the HTTP API on 127.0.0.1 (PORT, or 8080; 0: any free port)")
    parser.add_argument("--data", help="folder of the data, which survive a restart (TALLY_DATA, or .tally)")
    parser.add_argument("--verbose", action="store_true", help="print the functions' logs here too")
