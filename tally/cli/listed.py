"""What `tally help` says of each command, before the module of that command is imported. Nowhere else is it said."""

from __future__ import annotations

from typing import NamedTuple


class CommandSummary(NamedTuple):
    """One command: the module that declares it, in capitals, and one line of help."""

    module: str
    about: str
    needs_stack: bool = True
    """Whether it looks at a stack."""
    needs_counters: bool = False
    """Whether it reads the counters though it looks at no stack."""


PURPOSES = {
    "Is all well, and if not, what repairs it?": {
        "status": CommandSummary("status", "whether all is well: version, alarms, lag, drift, failed events"),
        "check": CommandSummary("check", "what is wrong with the numbers, and what would repair it"),
        "repair": CommandSummary("repair", "repair what `tally check` finds: shows it, asks, and does it"),
        "history": CommandSummary("history", "who repaired a number, when, why and by how much"),
    },
    "What is the number, and how did it move?": {
        "get": CommandSummary("get", "a number, the parts that it is kept in, its limit, and its drift"),
        "count": CommandSummary("count", "count one change, once for its key"),
        "limit": CommandSummary("limit", "show, set or reset the limit of one id"),
        "receipt": CommandSummary("receipt", "whether a change was counted, by its idempotency key"),
        "series": CommandSummary("series", "what was accepted of a number, by the hour or day"),
        "top": CommandSummary("series", "what moved up most in an hour, a day or a month"),
        "watch": CommandSummary("watch", "a number as it moves, until Ctrl-C"),
        "events": CommandSummary("events", "which numbers crossed a threshold, the newest first"),
    },
    "Numbers from elsewhere, and to elsewhere": {
        "import": CommandSummary("imports", "check the numbers in a file; with --yes, import them, each row once"),
        "scan": CommandSummary("scan", "count the items of a table of your own that are there, and set the numbers"),
        "shadow": CommandSummary("shadow", "how far an old number is off, hour by hour, beside Tally's"),
        "export": CommandSummary("exports", "print the numbers of a counter, or what it counts, as `import` reads it"),
    },
    "Going back, and forgetting a user": {
        "restore": CommandSummary("restore", "make new tables from the backups of a moment, ready to be adopted"),
        "forget": CommandSummary(
            "forget", "what there is of a user: posts, likes and other children, holds; with --yes, remove it"
        ),
    },
    "A stack of your own": {
        "init": CommandSummary(
            "init", "write counters.py, app.py and cdk.json into a folder of your own", needs_stack=False
        ),
        "dev": CommandSummary("dev", "run the whole stack of this folder on this machine", needs_stack=False),
        "deploy": CommandSummary(
            "deploy", "deploy Tally to the account and region of your credentials", needs_stack=False
        ),
        "destroy": CommandSummary(
            "destroy",
            "delete a deployed stack, with its edge; data of other stages than dev is kept",
            needs_stack=False,
        ),
    },
    "Without a stack": {
        "help": CommandSummary("commands", "what a command does", needs_stack=False),
        "completion": CommandSummary(
            "completion", "print the script that lets TAB complete this command", False, needs_counters=True
        ),
        "version": CommandSummary(
            "commands", "which version of the command this is, and where it is", needs_stack=False
        ),
    },
}
LISTED = {name: listed for commands in PURPOSES.values() for name, listed in commands.items()}
