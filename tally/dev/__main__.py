"""Runs the whole stack on this machine: `make dev`, or `python -m tally.dev` in the folder of the app."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from .base.errors import LocalError
from .base.options import DevOptions


class StopError(KeyboardInterrupt):
    """Ctrl-C. A plain KeyboardInterrupt inside an `exec` ends CPython by SIGINT, and each dataclass runs an `exec`."""


def exit_during_imports(number: int, frame: FrameType | None) -> None:
    """Handle SIGINT and SIGTERM during imports, because CPython turns an exception in an import into a TypeError."""
    os.write(sys.stdout.fileno(), b"tally: stopped\n")
    os._exit(0)


def raise_stop_error(number: int, frame: FrameType | None) -> None:
    """Handle SIGINT and SIGTERM until the server has its own handlers."""
    raise StopError


def handle_stop_signals_by(handler: Callable[[int, FrameType | None], None]) -> None:
    """Let `handler` handle SIGINT and SIGTERM from now on."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handler)


def say(line: str) -> None:
    """Print one line at the terminal."""
    print(f"tally: {line}", flush=True)


def main() -> int:
    """Run until Ctrl-C. Returns 1, after one line, for an error that a person can fix."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a line may quote characters that the terminal lacks
    handle_stop_signals_by(exit_during_imports)
    try:
        run(DevOptions.read(sys.argv[1:], os.environ, Path.cwd()))
        say("stopped")
    except LocalError as error:
        print(f"tally: {error}", file=sys.stderr)
        return 1
    except StopError:
        say("stopped")
    return 0


def run(options: DevOptions) -> None:
    """Start everything and serve."""
    import asyncio

    from .stack.prepared import prepare_stack

    handle_stop_signals_by(raise_stop_error)
    with prepare_stack(options) as (stack, spawned):
        from .server import serve  # while the code of the functions loads in another process

        asyncio.run(serve(stack, spawned, say))


if __name__ == "__main__":
    sys.exit(main())
