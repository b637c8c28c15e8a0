"""Tally's own client of a stack, for the commands that change numbers as any service does."""

from __future__ import annotations

import argparse

import boto3

from tally.client import Tally

from .connection import LOCAL, Stack

CALLER = "tally"
"""Whose change it is, of a counter that not anyone may change."""


def make_client(given: argparse.Namespace, stack: Stack, *functions: str, anyone: bool = False) -> Tally:
    """Tally's own client, of these functions of the stack: as a service, or as `anyone`."""
    caller = None if anyone else CALLER
    if given.local:
        client = boto3.client("lambda", endpoint_url=stack.outputs["ApiUrl"], **LOCAL)
        return Tally({name: name for name in functions}, caller=caller, lambda_client=client)
    arns = {name: stack.outputs.get(f"{name.capitalize()}FunctionArn", "") for name in functions}
    return Tally(arns, caller=caller)
