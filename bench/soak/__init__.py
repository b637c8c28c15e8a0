"""A million changes through the core while everything fails: `python -m bench.soak --help`.

Workers make changes through a proxy that fails (fault_plan.py, proxies.py), write down every answer (notes.py), and
send again what got none. Consumers and the judge run in processes that are killed and frozen (setup.py). Meanwhile the
watch looks for false drift and a false `as_of` (monitor.py). At the end every tally is compared with the notes
(comparison.py).
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.append(str(ROOT / "lambdas"))  # what is soaked
