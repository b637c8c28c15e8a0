"""How `make dev` was called: its command line and environment."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .errors import LocalError

PORT_DEFAULT = "8080"
DATA_DEFAULT = ".tally"
SCHEDULE_S_MAX = 10  # a schedule of a minute on AWS runs this often here: a person waits for drift to show
SETTLE_DEFAULT_S = 20  # 300 on AWS; here streams deliver within two seconds, and a person waits for drift to show


@dataclass(frozen=True)
class Options:
    """What a person chose."""

    app: Path
    """The folder of the CDK app: app.py, cdk.json and lambdas/."""
    port: int
    """0: any that is free."""
    data: Path
    endpoint: str | None
    """A DynamoDB engine to use instead of the embedded one."""
    page_hosts: str
    verbose: bool = False
    settle_s: int = SETTLE_DEFAULT_S
    """How old a minute of the ledger is before it is judged."""
    streams_endpoint: str | None = None
    """Of that engine's streams, if they are elsewhere."""

    @classmethod
    def read(cls, arguments: Sequence[str], environment: Mapping[str, str], app: Path) -> Options:
        """Read the command line, then the environment. `app` is the folder of the app. Raises LocalError."""
        given = _parser().parse_args(arguments)
        port = given.port or environment.get("PORT") or PORT_DEFAULT
        if not (port.isascii() and port.isdigit() and int(port) <= 65535):
            raise LocalError(f"the port is {port!r}: it must be a number from 0 to 65535")
        settle_s = environment.get("TALLY_SETTLE_S") or str(SETTLE_DEFAULT_S)
        if not (settle_s.isascii() and settle_s.isdigit() and int(settle_s) > 0):
            raise LocalError(f"TALLY_SETTLE_S is {settle_s!r}: it must be a whole number of seconds from 1")
        return cls(
            app=app,
            port=int(port),
            data=Path(given.data or environment.get("TALLY_DATA") or DATA_DEFAULT),
            endpoint=environment.get("AWS_ENDPOINT_URL_DYNAMODB") or None,
            page_hosts=environment.get("TALLY_PAGE_HOSTS") or "*",
            verbose=given.verbose,
            settle_s=int(settle_s),
            streams_endpoint=environment.get("AWS_ENDPOINT_URL_DYNAMODB_STREAMS") or None,
        )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m local", description="Run Tally on this machine.")
    parser.add_argument("--port", help="of the HTTP API, on 127.0.0.1 (PORT, or 8080; 0: any that is free)")
    parser.add_argument("--data", help="folder of the data, kept over restarts (TALLY_DATA, or .tally)")
    parser.add_argument("--verbose", action="store_true", help="the functions' logs here as well")
    parser.epilog = (
        "AWS_ENDPOINT_URL_DYNAMODB: a DynamoDB engine to use instead of the embedded one."
        " AWS_ENDPOINT_URL_DYNAMODB_STREAMS: where its streams are, if elsewhere."
        f" TALLY_SETTLE_S: how old a minute is before drift is judged ({SETTLE_DEFAULT_S} s)."
        " TALLY_PAGE_HOSTS: the hosts whose visits are counted, separated by commas (any)."
    )
    return parser
