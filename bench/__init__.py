"""Side-by-side measurements on one engine, in one run; a hot key, simulated; the streams. `python -m bench --help`.

The same play counted in six ways (designs.py), and written down for the rollup in two. What each costs (speed.py,
costs.py) and by how much it is off after faults (accuracy.py). What stream consumers cost (rollups.py), how soon a
visit is in its count (rolled_up.py), and what becomes of a key that everybody wants at once (hot_key.py).
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "lambdas"))  # what is measured
