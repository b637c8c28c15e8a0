"""Modules of the fork server. It dies with the main process, and the processes that it forked die, too."""

from tally.dev.stack.zygote import die_with_parent

from . import processes

die_with_parent()

__all__ = ["processes"]
