"""Tally as a construct, for a stack of your own: `from tally.cdk import Tally` (docs/adopt.md)."""

from stacks.options import Options, OptionsError
from stacks.tally_stack import Tally

__all__ = ["Options", "OptionsError", "Tally"]
