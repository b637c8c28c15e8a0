"""Tally as a construct, for a stack of your own: `from tally.cdk import Tally` (docs/adopt.md).

`Tally` is imported on first use, so that the command can read `options` without the CDK.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .options import Options, OptionsError

if TYPE_CHECKING:
    from .construct import Tally

__all__ = ["Options", "OptionsError", "Tally"]


def __getattr__(name: str) -> Any:
    if name == "Tally":
        from .construct import Tally

        return Tally
    raise AttributeError(name)
