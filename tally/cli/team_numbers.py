"""Team numbers: the excess of a number, and the command that corrects it. Tally never writes team numbers."""

from __future__ import annotations

import argparse
import json
import shlex

from tally.dynamo.keys import Item
from tally.maintenance.reconcile import Finding
from tally.team import scan_state, watch
from tally.team.recounts import Recount

from .connection import Stack
from .terminal import print_json_or_line


def say_difference(given: argparse.Namespace, stack: Stack, finding: Finding) -> None:
    """Prints a line for a wrong number, in the unit of the team's table. JSON has Tally's unit, and the `scale`."""
    counter, group, off = finding.counter, finding.target, finding.drift.drift
    assert counter.watch is not None
    number, kept = counter.watch.attribute, watch.team_number(stack.store, counter, group)
    scan = scan_state.read_scan(stack.store, counter.name)
    recount = Recount(stack.store, counter, scan)
    of = recount.items_declaration
    body = {
        "found": "differs", "counter": counter.name, "id": group, "number": number, "value": kept,
        "items": finding.tally, "drift": off, "since": finding.drift.since, "confirmed": finding.confirmed != 0,
        **({"scale": of.scale} if of.scale else {}),
    }  # fmt: skip
    is_, items = "None" if kept is None else of.shown(kept), of.shown(finding.tally)
    line = f"differs  {finding.name}: {number} is {is_}, and its items come to {items}: it is {of.shown(off, '+')} off"
    if scan.counted != counter.items_digest:
        repair = f"the items were counted by another declaration: run `tally scan {counter.name}` first"
    elif kept is None:
        repair = "the number is gone: the sweep will check it"
    else:
        repair = f"to repair it: {_command(recount, group, number, -off)}"
    print_json_or_line(given, body, f"{line}; {repair}")


def _command(recount: Recount, group: str, number: str, amount: int) -> str:
    """Returns the command that adds the amount, which is right under traffic, too."""
    added = recount.items_declaration.shown(amount)
    arguments = {
        "--table-name": recount.table,
        "--key": json.dumps(_key(recount, group)),
        "--update-expression": "ADD #n :n",
        "--expression-attribute-names": json.dumps({"#n": number}),
        "--expression-attribute-values": json.dumps({":n": {"N": added}}),
    }
    return shlex.join(["aws", "dynamodb", "update-item", *(part for pair in arguments.items() for part in pair)])


def _key(recount: Recount, group: str) -> Item:
    """Returns the key of the item that has the number."""
    of, watch = recount.items_declaration, recount.items_declaration.watch
    assert watch is not None
    assert of.sort_key is not None
    return {of.partition_key: recount.partition(group), of.sort_key: {recount.key_types[of.sort_key]: watch.at}}
