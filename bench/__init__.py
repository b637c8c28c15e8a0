"""Side-by-side measurements on one engine, in one run. `python -m bench --help`.

Count the same play in seven ways (designs.py). Measure what each takes and costs (speed.py, costs.py) and its error
after faults (accuracy.py). Measure the stream consumers (rollups.py) and how soon a visit is counted (rolled_up.py).
Measure the ledger: the price of the journal (journal.py), the judge (judging.py), an edit's way (manual_edits.py).
Simulate one hot key (hot_key.py) and time the imports of hot handlers (imports.py).
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "lambdas"))  # what is measured; behind the mutated copy, if a test runs on one
