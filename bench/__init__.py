"""Side-by-side measurements: the same play counted in six ways, on one engine, in one run. `python -m bench --help`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "lambdas"))  # what is measured
