"""The soak test: a million changes while requests fail and processes die. `python -m bench.soak --help` shows how.

Workers (workers.py) make changes through a proxy that makes requests fail (fault_plan.py), and store every answer in a
file (notes.py). A worker sends a change until it gets an answer. The consumers and the sweep run in processes that are
killed and frozen (processes.py). At the same time, the monitor (monitor.py) checks that no false drift is reported, and
that each read has the changes that were accepted before its `as_of`. At the end, every tally is compared with the
stored answers (comparison.py).
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.append(str(ROOT / "lambdas"))  # the code under test
