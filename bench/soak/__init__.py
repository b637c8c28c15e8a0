"""The soak test: a million changes while requests fail and processes die. Options: `python -m bench.soak --help`.

Workers (workers.py) make changes through a proxy that makes requests fail (fault_plan.py), and store every answer in a
file (notes.py). A worker sends a change until it gets an answer. The soak kills and freezes the processes of the
consumers and the sweep (processes.py). The monitor (monitor.py) checks that Tally reports no false drift, and
that each read has the changes that were accepted before its `as_of`. At the end, every tally is compared with the
stored answers (comparison.py).
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.append(str(ROOT / "lambdas"))  # the code under test
