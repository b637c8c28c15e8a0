"""The command `dev`: runs the whole stack of this folder on this machine."""

from __future__ import annotations

import argparse
import os
import sys

from tally import dev
from tally.dev.base import options

from .command import Command
from .folder import counters, folder, missing_text
from .terminal import CommandError


def run_local_stack(args: argparse.Namespace) -> int:
    """Replaces this process by the local stack, which handles Ctrl-C. Does not return. Raises CommandError."""
    if not counters().is_file():
        raise CommandError(missing_text(counters()))
    options_given = [f"--{name}={value}" for name in ("port", "data") if (value := getattr(args, name))]
    options_given += ["--verbose"] if args.verbose else []
    os.chdir(folder())
    # -P: Python does not import a file of the team in place of a module of the same name.
    os.execv(sys.executable, [sys.executable, "-P", "-m", dev.__name__, *options_given])


DEV = Command(
    "dev", run_local_stack, lambda parser, counters: options.add_arguments(parser),
    examples=f"  tally dev\n  tally dev --port 8081 --data .tally-2\n\n{options.VARIABLES}\n",
)  # fmt: skip
