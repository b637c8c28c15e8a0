"""Fault injection between boto3 and the DynamoDB engine, for tests and benchmarks.

`FaultProxy` injects the faults. `script`, `always` and `random_faults` make plans: which request meets which fault.
"""

from .plans import *  # noqa: F403
from .proxy import FaultProxy as FaultProxy
