"""The command `dev`: runs the whole stack of this folder on this machine."""

from __future__ import annotations

import argparse
import os
import sys

from tally import dev
from tally.dev.base import options

from .command import Command
from .folder import counters, folder, missing
from .terminal import CommandError


def _run_local_stack(args: argparse.Namespace) -> int:
    """Replaces this process by the local stack, which handles Ctrl-C. Does not return. Raises CommandError."""
    if not counters().is_file():
        raise CommandError(missing(counters()))
    passed = [f"--{name}={value}" for name in ("port", "data") if (value := getattr(args, name))]
    passed += ["--verbose"] if args.verbose else []
    os.chdir(folder())
    # -P: Python must not take a file of the team for a module of the same name.
    os.execv(sys.executable, [sys.executable, "-P", "-m", dev.__name__, *passed])


DEV = Command(
    "dev", _run_local_stack, lambda parser, counters: options.add_arguments(parser),
    examples=f"  tally dev\n  tally dev --port 8081 --data .tally-2\n\n{options.VARIABLES}\n",
)  # fmt: skip
