"""Prints by how much a team number differs from its items, and the command that repairs the number.

Tally itself never writes a team number.
"""

from __future__ import annotations

import argparse
import json
import shlex

from tally.maintenance.reconcile import Finding
from tally.team import scan_state, watch
from tally.team.recounts import Recount

from .connection import Stack
from .terminal import print_json_or_line


def print_difference(args: argparse.Namespace, stack: Stack, finding: Finding) -> None:
    """Prints a line for a wrong number, in the unit of the team's table: 12.50. JSON has 1250 and the `scale` 2."""
    counter, group, excess = finding.counter, finding.target, finding.drift.drift
    assert counter.watch is not None
    attribute, value = counter.watch.attribute, watch.team_number(stack.store, counter, group)
    scan = scan_state.read_scan(stack.store, counter.name)
    recount = Recount(stack.store, counter, scan)
    declaration = recount.items_declaration
    body = {
        "found": "differs", "counter": counter.name, "id": group, "number": attribute, "value": value,
        "items": finding.tally, "drift": excess, "since": finding.drift.since, "confirmed": finding.confirmed != 0,
        **({"scale": declaration.scale} if declaration.scale else {}),
    }  # fmt: skip
    shown_value, shown_sum = "None" if value is None else declaration.format(value), declaration.format(finding.tally)
    shown_excess = declaration.format(excess, "+")
    line = f"differs  {finding.name}: {attribute} is {shown_value}, and its items come to {shown_sum}"
    if scan.counted_by != counter.items_digest:
        repair = f"the items were counted by another declaration: run `tally scan {counter.name}` first"
    elif value is None:
        repair = "the number is missing: the sweep will check it"
    else:
        repair = f"to repair it: {_repair_command(recount, group, attribute, -excess)}"
    print_json_or_line(args, body, f"{line}: the excess is {shown_excess}; {repair}")


def _repair_command(recount: Recount, group: str, attribute: str, amount: int) -> str:
    """Returns the AWS command that adds `amount` to the number. ADD is exact while others write to the number, too."""
    declaration = recount.items_declaration
    assert declaration.watch is not None
    assert declaration.sort_key is not None
    sort_key = {recount.key_types[declaration.sort_key]: declaration.watch.at}
    key = {declaration.partition_key: recount.partition(group), declaration.sort_key: sort_key}
    added = declaration.format(amount)
    arguments = {
        "--table-name": recount.table,
        "--key": json.dumps(key),
        "--update-expression": "ADD #n :n",
        "--expression-attribute-names": json.dumps({"#n": attribute}),
        "--expression-attribute-values": json.dumps({":n": {"N": added}}),
    }
    return shlex.join(["aws", "dynamodb", "update-item", *(part for pair in arguments.items() for part in pair)])
