"""Modules of the process that forks the others. It dies with the main process, and the others die with it."""

from tally.dev.stack.zygote import die_with_parent

from . import processes

die_with_parent()

__all__ = ["processes"]
