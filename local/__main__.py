"""`make dev`: the whole stack on this machine."""

from __future__ import annotations

import io
import os
import signal
import sys
from pathlib import Path
from types import FrameType

from .base.errors import LocalError
from .base.options import Options


class StopError(KeyboardInterrupt):
    """Ctrl-C. A KeyboardInterrupt itself that passes an `exec` (each dataclass has one) makes CPython end by SIGINT."""


def stop(number: int, frame: FrameType | None) -> None:
    """The handler of SIGINT and SIGTERM until the server has its own."""
    raise StopError


def say(line: str) -> None:
    """One line for the person at the terminal."""
    print(f"tally: {line}", flush=True)


def main() -> int:
    """Run until Ctrl-C. 1, and one line, for what a person can put right."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a line may quote what no terminal can show
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    try:
        run(Options.read(sys.argv[1:], os.environ, Path.cwd()))
        say("stopped")
    except LocalError as error:
        print(f"tally: {error}", file=sys.stderr)
        return 1
    except StopError:
        say("stopped")
    return 0


def run(options: Options) -> None:
    """Start everything and serve. The imports take a second: they stand here so that Ctrl-C is heeded meanwhile."""
    import asyncio

    from .server import serve
    from .stack.prepared import prepared

    with prepared(options) as stack:
        asyncio.run(serve(stack, say))


if __name__ == "__main__":
    sys.exit(main())
