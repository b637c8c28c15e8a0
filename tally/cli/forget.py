"""The command `forget`: counts a user's data, or erases it. The history keeps only a digest of the user's name."""

from __future__ import annotations

import argparse
import re
from collections import Counter as Multiset
from collections.abc import Mapping, Sequence

from tally import fields
from tally.drift import history
from tally.drift.checks import format_time
from tally.drift.history import ForgetRun
from tally.dynamo import clock
from tally.dynamo.client import Call
from tally.errors import TallyError
from tally.maintenance import forgetting
from tally.maintenance.forgetting import Trace, TraceKind
from tally.streams import dead_letters

from . import values
from .command import Command, UsageError
from .connection import Stack
from .terminal import explain_error, note, print_json_or_line, progress_bar, say

_REMAINS = (
    "failed events may name the user for 14 more days, logs for 30, backups for 35; so may numbers whose ids are users:"
    " docs/privacy.md"
)
NOTED_EVERY = 50  # removals between two notes in the history, which lacks the last removals of a killed run


def _check_options(args: argparse.Namespace) -> None:
    if re.search(rf"(?<!\w){re.escape(args.user)}(?!\w)", f"{args.by} {args.why}"):
        raise UsageError("--by and --why must not name the user, because the history keeps both")


def forget(args: argparse.Namespace, stack: Stack) -> int:
    """Prints how much data of a user there is; with --yes, erases the data. Returns 1 if something is left."""
    user = fields.user(args.user, "--user")
    traces: list[Trace] = []
    with progress_bar(forgetting.find_traces(stack.store, stack.counters, user), "page", "scanned") as pages:
        for page in pages:
            traces += page
    traces.sort(key=lambda trace: trace.kind is TraceKind.POST)  # posts last: the sweep removes a deleted post's likes
    if not args.yes:
        counts = _format_counts(Multiset(trace.kind for trace in traces))
        say(f"found    {counts}" if traces else "there is no data of this user")
        return 1 if traces else 0
    run = ForgetRun(stack.store, args.user, args.by, args.why, int(clock.now_s()), len(traces))
    remaining = _remove_traces(stack, user, traces, run)
    say(f"removed  {_format_counts({kind: run.removed[kind.plural] for kind in TraceKind})}")
    if run.removed["posts"]:
        note("the sweep removes the likes of the posts")
    if dead_letters.any_waiting(stack.store):
        note("there are dead letters, which may name the user: run `tally repair`, then this again")
    say(f"{remaining} left: run this command again" if remaining else "nothing is left")
    if not remaining:
        note(_REMAINS)
    return 1 if remaining else 0


def _remove_traces(stack: Stack, user: str, to_remove: Sequence[Trace], run: ForgetRun) -> int:
    """Removes the traces and notes the run in the history, also after Ctrl-C. Returns how many traces are left."""
    remaining, finished = 0, False
    run.note(finished=False)
    try:
        with progress_bar(to_remove, "item", "removed") as traces:
            for number, trace in enumerate(traces, 1):
                try:
                    forgetting.forget_trace(Call(stack.store, user), stack.counters, trace)
                    run.removed[trace.kind.plural] += 1
                except TallyError as error:
                    note(f"{trace.kind.value} {trace.id}: {explain_error(error)}")
                    remaining += 1
                if number % NOTED_EVERY == 0:
                    run.note(finished=False)
        finished = not remaining
    finally:
        run.note(finished=finished)
    return remaining


def print_runs(args: argparse.Namespace, stack: Stack) -> int:
    """Prints the runs that erased a user."""
    runs = list(history.forget_runs(stack.store, args.user))
    for entry in runs:
        removed = _format_counts({kind: entry[kind.plural] for kind in TraceKind})
        unfinished = "" if entry["finished"] else f", not finished, of {entry['found']}"
        line = f"{format_time(entry['at'])}  removed {removed}{unfinished}, by {entry['by']}: {entry['why']}"
        print_json_or_line(args, entry, line)
    if not runs and not args.json:
        say("this user was never erased")
    return 0


def _format_counts(numbers: Mapping[TraceKind, int]) -> str:
    """Returns `1 post, 51 children, 0 holds`."""
    counts = {kind: numbers.get(kind, 0) for kind in TraceKind}
    return ", ".join(f"{count} {kind.value if count == 1 else kind.plural}" for kind, count in counts.items())


FORGET = Command(
    "forget", forget,
    lambda parser, counters: parser.add_argument("--user", metavar="ID", type=values.user_id, required=True,
                                                 help="the `sub` of the user's tokens"),
    _check_options, write_option="--yes",
    examples="  tally forget --user 'auth0|7c20'               counts the data; with --yes, erases it\n",
)  # fmt: skip
