"""What the functions import at a cold start: neither pydantic nor the tracer's SDK (130 to 300 ms each)."""

from __future__ import annotations

import gc

from bench import ROOT
from bench.clients import LOCAL
from bench.imports import time_import
from tally.contract.declarations import READERS, SCHEDULES, Declarations
from tally.dynamo.client import dynamodb_client

SERVING = sorted(Declarations.load(ROOT / "lambdas/counters.py").routes_by_function)
UNATTENDED = [one.function for one in (*READERS, *SCHEDULES)]


def test_no_function_imports_anything_heavy() -> None:
    every = "; ".join(f"handlers.{function}" for function in (*SERVING, *UNATTENDED))
    assert time_import(f"import handlers; {every}").heavy == []


def test_garbage_collection_goes_on_without_what_a_cold_start_made() -> None:
    gc.unfreeze()  # the tests' own
    dynamodb_client(**LOCAL).close()
    assert gc.isenabled()
    assert gc.get_freeze_count() > 10_000
