"""`tally completion`: what lets the TAB key complete the command, in bash and zsh."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

import shtab

from .terminal import say

_HOW = """put it where the shell looks for it:
  tally completion bash > ~/.local/share/bash-completion/completions/tally
  tally completion zsh > "${fpath[1]}/_tally"

"""
_COUNTERS = {"bash": "_tally_counters", "zsh": "_tally_counters"}
"""The functions of the script that list the counters."""


def add(made: argparse.ArgumentParser) -> None:
    """The command's options."""
    made.formatter_class = argparse.RawDescriptionHelpFormatter
    made.epilog = _HOW + (made.epilog or "")
    made.add_argument("shell", choices=("bash", "zsh"))


def counter(option: argparse.Action) -> None:
    """Complete this option with the counters that are declared."""
    option.complete = _COUNTERS  # type: ignore[attr-defined]  # what shtab reads


def completion(given: argparse.Namespace, parser: argparse.ArgumentParser, counters: Iterable[str]) -> int:
    """Print the script. It knows the counters that are declared now."""
    names = " ".join(counters)
    listed = {
        "bash": f"_tally_counters() {{ compgen -W '{names}' -- \"$1\"; }}",
        "zsh": f"_tally_counters() {{ _values counter {names}; }}",
    }
    say(shtab.complete(parser, given.shell, preamble=listed[given.shell]))
    return 0
