"""At a cold start no function imports pydantic or the tracer's SDK, which would take 130 to 300 ms each."""

from __future__ import annotations

import gc

from bench import ROOT
from bench.clients import LOCAL
from bench.imports import time_code
from tally.contract.declarations import READERS, SCHEDULES, Declarations
from tally.dynamo.client import dynamodb_client

SERVING = sorted(Declarations.load(ROOT / "lambdas/counters.py").routes_by_function)
BACKGROUND = [entry.function for entry in (*READERS, *SCHEDULES)]


def test_no_function_imports_anything_heavy() -> None:
    imports = "; ".join(f"handlers.{function}" for function in (*SERVING, *BACKGROUND))
    assert time_code(f"import handlers; {imports}").heavy == []


def test_garbage_collection_skips_the_objects_of_the_cold_start() -> None:
    gc.unfreeze()  # tests/conftest.py froze the objects of the tests
    dynamodb_client(**LOCAL).close()  # a client freezes all objects that a cold start has made
    assert gc.isenabled()
    assert gc.get_freeze_count() > 10_000
