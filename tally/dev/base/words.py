"""The command line that starts a stack on this machine: `make dev` in a checkout, `tally dev` with the package."""

from collections.abc import Callable

from tally.paths import IS_WHEEL

DEV = "`tally dev`" if IS_WHEEL else "`make dev`"
Say = Callable[[str], None]
"""Prints one line at the terminal."""
