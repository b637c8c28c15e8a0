"""Fault injection between boto3 and the DynamoDB engine, for tests and benchmarks.

`FaultProxy` is the proxy; `script`, `always` and `random_faults` plan which request meets which fault.
"""

from .plans import *  # noqa: F403
from .proxy import FaultProxy as FaultProxy
