"""What the process loads that the others are forked from. It dies with the main process, and the others with it."""

from tally.dev.stack.zygote import die_with_parent

from . import processes

die_with_parent()

__all__ = ["processes"]
