"""The options of `make dev`: its command line and environment."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .errors import LocalError

PORT_DEFAULT = "8080"
DATA_DEFAULT = ".tally"
SCHEDULE_S_MAX = 10  # a schedule of a minute on AWS runs this often here: a person waits for drift to show
SETTLE_DEFAULT_S = 20  # 300 on AWS; here streams deliver within two seconds, and a person waits


@dataclass(frozen=True)
class Options:
    """A person's choices."""

    app: Path
    """The folder of the CDK app: app.py, cdk.json and lambdas/."""
    port: int
    """0: any free port."""
    data: Path
    endpoint: str | None
    """A DynamoDB engine to use instead of the embedded one."""
    page_hosts: str
    verbose: bool = False
    settle_s: int = SETTLE_DEFAULT_S
    """The age at which Tally judges a minute of the ledger."""
    streams_endpoint: str | None = None
    """The endpoint of that engine's streams, if it differs."""

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
    parser.add_argument("--port", help="port of the HTTP API on 127.0.0.1 (PORT, or 8080; 0: any free port)")
    parser.add_argument("--data", help="folder of the data, which survive a restart (TALLY_DATA, or .tally)")
    parser.add_argument("--verbose", action="store_true", help="print the functions' logs here too")
    parser.epilog = (
        "AWS_ENDPOINT_URL_DYNAMODB: a DynamoDB engine to use instead of the embedded one."
        " AWS_ENDPOINT_URL_DYNAMODB_STREAMS: the endpoint of its streams, if it differs."
        f" TALLY_SETTLE_S: the age at which Tally judges a minute for drift ({SETTLE_DEFAULT_S} s)."
        " TALLY_PAGE_HOSTS: count visits of these hosts only, separated by commas (any)."
    )
    return parser
