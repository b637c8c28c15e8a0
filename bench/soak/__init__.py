"""A million changes through the core while everything fails: `python -m bench.soak --help`.

Workers (workers.py) make changes through a proxy that fails (fault_plan.py) and write down every answer (notes.py). If
a change gets no answer, they send it again. The consumers and the sweep run in processes that are killed and frozen
(processes.py). At the same time the monitor looks for false drift and a false `as_of` (monitor.py). At the end every
tally is compared with the notes (comparison.py).
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.append(str(ROOT / "lambdas"))  # the code under test
