"""Each handler loads alone, in a process that has loaded nothing else of the package, as in Lambda."""

from __future__ import annotations

import subprocess
import sys

from tally import paths
from tally.contract.declarations import Declarations
from tests.patience import PATIENCE_S

# One process loads the libraries, and forks a process for each handler.
SCRIPT = """
import os, sys
import boto3, aws_lambda_powertools.metrics
from aws_lambda_powertools import Logger
from aws_lambda_powertools.utilities import idempotency
boto3.client("dynamodb")
failed = []
for name in sys.argv[1:]:
    assert not [module for module in sys.modules if module.partition(".")[0] in ("tally", "handlers", "counters")]
    pid = os.fork()
    if not pid:
        try:
            import handlers
            assert callable(getattr(handlers, name)), name
        except BaseException as error:
            print(name, type(error).__name__, error, flush=True)
            os._exit(1)
        os._exit(0)
    failed += [name] if os.waitpid(pid, 0)[1] else []
sys.exit(f"these do not load alone: {failed}" if failed else 0)
"""
VARIABLES = {  # without these, some handlers do not load
    "PYTHONPATH": f"{paths.LAMBDAS}:{paths.PACKAGE.parent}",
    "AWS_REGION": "eu-west-1",
    "AWS_DEFAULT_REGION": "eu-west-1",
    "AWS_ACCESS_KEY_ID": "none",
    "AWS_SECRET_ACCESS_KEY": "none",
    **{
        f"TALLY_{name}_{kind}": f"tally-{name}"
        for name in ("COUNTS", "RECEIPTS", "LEDGER")
        for kind in ("TABLE", "STREAM")
    },
    "TALLY_DEAD_LETTER_BUCKET": "dead-letters",
    "TALLY_CONSOLE": "{}",
    "POWERTOOLS_METRICS_NAMESPACE": "Tally",
    "POWERTOOLS_SERVICE_NAME": "Tally",
}


def test_each_handler_loads_alone_in_a_fresh_process() -> None:
    names = Declarations.load(paths.LAMBDAS / "counters.py").needs
    assert {"increments", "rollup", "sweep"} <= names.keys()
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, *names], env=VARIABLES, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert (run.returncode, run.stdout) == (0, ""), run.stdout + run.stderr
