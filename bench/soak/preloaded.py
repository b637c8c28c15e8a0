"""Modules of the fork server, which dies with the main process. The processes that the server forked die, too."""

from tally.dev.stack.zygote import die_with_parent

from . import processes

die_with_parent()

__all__ = ["processes"]
