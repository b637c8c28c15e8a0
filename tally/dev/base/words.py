"""What people type to start a stack on their machine: `make` in a checkout, the command with the package."""

from collections.abc import Callable

from tally.paths import IS_WHEEL

DEV = "`tally dev`" if IS_WHEEL else "`make dev`"
Say = Callable[[str], None]
"""Prints one line at the terminal."""
