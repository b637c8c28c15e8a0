"""Makes the client of a stack for commands that change numbers as a program of the team does."""

from __future__ import annotations

import argparse

import boto3

from tally.client import Tally

from .connection import LOCAL, Stack

CALLER = "tally"
"""The caller of a change, if strangers may not change the counter."""


def make_client(args: argparse.Namespace, stack: Stack, *functions: str, has_caller: bool = True) -> Tally:
    """Returns a client for these functions of the stack. `has_caller`: its requests name `CALLER`."""
    caller = CALLER if has_caller else None
    if args.local:
        client = boto3.client("lambda", endpoint_url=stack.outputs["ApiUrl"], **LOCAL)
        return Tally({name: name for name in functions}, caller=caller, lambda_client=client)
    arns = {name: stack.outputs.get(f"{name.capitalize()}FunctionArn", "") for name in functions}
    return Tally(arns, caller=caller)
