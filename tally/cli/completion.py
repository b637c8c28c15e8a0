"""The command `completion`: prints the script that lets TAB complete the command."""

from __future__ import annotations

import argparse

import shtab

from .command import Command
from .terminal import say


def print_completion(args: argparse.Namespace) -> int:
    """Prints the script, with the counters that the app declares now."""
    names = " ".join(args.declared)
    listed = {
        "bash": f"_tally_counters() {{ compgen -W '{names}' -- \"$1\"; }}",
        "zsh": f"_tally_counters() {{ _values counter {names}; }}",
    }
    say(shtab.complete(args.parser, args.shell, preamble=listed[args.shell]))
    return 0


COMPLETION = Command(
    "completion", print_completion, lambda parser, counters: parser.add_argument("shell", choices=("bash", "zsh")),
    examples="""  tally completion bash > ~/.local/share/bash-completion/completions/tally
  tally completion zsh > "${fpath[1]}/_tally"
""",
)  # fmt: skip
