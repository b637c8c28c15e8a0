"""The fork server imports this module, and dies with the main process. The processes that it forked die, too."""

from tally.dev.stack.zygote import die_with_parent

from . import processes

die_with_parent()

__all__ = ["processes"]
