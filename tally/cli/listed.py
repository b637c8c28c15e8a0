"""What `tally help` says of each command, before the module of that command is imported. Nowhere else is it said."""

from __future__ import annotations

from typing import NamedTuple


class Listed(NamedTuple):
    """One command: the module that declares it, in capitals, and one line of help."""

    module: str
    about: str
    stack: bool = True
    """Whether it looks at a stack."""
    counters: bool = False
    """Whether it reads the counters though it looks at no stack."""


PURPOSES = {
    "Is all well, and if not, what repairs it?": {
        "status": Listed("status", "whether all is well: version, alarms, lag, drift, failed events"),
        "check": Listed("check", "what is wrong with the numbers, and what would repair it"),
        "repair": Listed("repair", "repair what `tally check` finds: shows it, asks, and does it"),
        "history": Listed("history", "who repaired a number, when, why and by how much"),
    },
    "What is the number, and how did it move?": {
        "get": Listed("get", "a number, the parts that it is kept in, its limit, and its drift"),
        "count": Listed("count", "count one change, once for its key"),
        "limit": Listed("limit", "show, set or reset the limit of one id"),
        "receipt": Listed("receipt", "whether a change was counted, by its idempotency key"),
        "series": Listed("series", "what was accepted of a number, by the hour or day"),
        "top": Listed("series", "what moved up most in an hour, a day or a month"),
        "watch": Listed("watch", "a number as it moves, until Ctrl-C"),
        "events": Listed("events", "which numbers crossed a threshold, the newest first"),
    },
    "Numbers from elsewhere, and to elsewhere": {
        "import": Listed("imports", "check the numbers in a file; with --yes, import them, each row once"),
        "scan": Listed("scan", "count the items of a table of your own that are there, and set the numbers"),
        "shadow": Listed("shadow", "how far an old number is off, hour by hour, beside Tally's"),
        "export": Listed("exports", "print the numbers of a counter, or what it counts, as `import` reads it"),
    },
    "Going back, and forgetting a user": {
        "restore": Listed("restore", "make new tables from the backups of a moment, ready to be adopted"),
        "forget": Listed(
            "forget", "what there is of a user: posts, likes and other children, holds; with --yes, remove it"
        ),
    },
    "A stack of your own": {
        "init": Listed("init", "write counters.py, app.py and cdk.json into a folder of your own", stack=False),
        "dev": Listed("dev", "run the whole stack of this folder on this machine", stack=False),
        "deploy": Listed("deploy", "deploy Tally to the account and region of your credentials", stack=False),
        "destroy": Listed(
            "destroy", "delete a deployed stack, with its edge; data of other stages than dev is kept", stack=False
        ),
    },
    "Without a stack": {
        "help": Listed("commands", "what a command does", stack=False),
        "completion": Listed(
            "completion", "print the script that lets TAB complete this command", False, counters=True
        ),
        "version": Listed("commands", "which version of the command this is, and where it is", stack=False),
    },
}
LISTED = {name: listed for commands in PURPOSES.values() for name, listed in commands.items()}
