"""One line of help for each command. `tally help` reads this file, because an import of all commands is slow."""

from __future__ import annotations

from typing import NamedTuple


class CommandSummary(NamedTuple):
    """One line of help for a command. `module`: the module that declares the command: `series` declares `TOP`."""

    module: str
    about: str
    needs_stack: bool = True
    """Whether the command reads or writes a stack. Such a command also reads the counters."""
    needs_counters: bool = False
    """Whether a command that needs no stack reads the counters."""


SUMMARIES_BY_PURPOSE = {
    "Check and repair": {
        "status": CommandSummary("status", "show the health of a stack on one screen"),
        "check": CommandSummary("check", "find wrong numbers, and change none of them"),
        "repair": CommandSummary("repair", "repair what `tally check` finds; shows it and asks first"),
        "history": CommandSummary("history", "show who repaired a number, when, why and by how much"),
    },
    "Read and change a number": {
        "get": CommandSummary("get", "show a number, its shards, its limit and its drift"),
        "count": CommandSummary("count", "count one change, once for its key"),
        "limit": CommandSummary("limit", "show, set or reset the limit of one id"),
        "receipt": CommandSummary("receipt", "look up a change by its idempotency key"),
        "series": CommandSummary("series", "show the accepted changes of a number, by the hour or day"),
        "top": CommandSummary("series", "list the numbers that moved up most in an hour, a day or a month"),
        "watch": CommandSummary("watch", "follow a number live, until Ctrl-C"),
        "events": CommandSummary("events", "list the thresholds that numbers crossed, the newest first"),
    },
    "Import and export": {
        "import": CommandSummary("imports", "check the numbers in a file; with --yes, import them, each row once"),
        "scan": CommandSummary("scan", "count the items already in your table"),
        "shadow": CommandSummary("shadow", "compare another counter with Tally, hour by hour"),
        "export": CommandSummary("exports", "print the numbers or children of a counter, as `import` reads them"),
    },
    "Restore, and erase a user": {
        "restore": CommandSummary("restore", "restore tables to a point in time"),
        "forget": CommandSummary("forget", "count a user's data; with --yes, erase it"),
    },
    "Run and deploy": {
        "init": CommandSummary("init", "write counters.py, app.py and cdk.json into a folder", needs_stack=False),
        "dev": CommandSummary("dev", "run the whole stack of this folder on this machine", needs_stack=False),
        "deploy": CommandSummary("deploy", "deploy to the account and region of your credentials", needs_stack=False),
        "destroy": CommandSummary(
            "destroy", "delete a stack; keeps the data of every stage but dev", needs_stack=False
        ),
    },
    "About the command": {
        "help": CommandSummary("commands", "show what a command does", needs_stack=False),
        "completion": CommandSummary(
            "completion", "print the script that lets TAB complete this command", needs_stack=False, needs_counters=True
        ),
        "version": CommandSummary("commands", "print the version of this command, and its folder", needs_stack=False),
    },
}
COMMAND_SUMMARIES = {name: summary for commands in SUMMARIES_BY_PURPOSE.values() for name, summary in commands.items()}
