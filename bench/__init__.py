"""Measures several ways to count side by side, on one engine and in one run. `python -m bench --help`.

`claims` lists each measurement, its module, and Tally's claims about its figures: the same play in six ways (designs,
plays), many plays at once, the imports of a hot handler, the stream consumers, the journal and its judge, one hot key
in a simulation, and the local stack. `cost` is the calculator of docs/cost.md.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# The measured code; a test of mutations puts its mutated copy before this folder.
sys.path.append(str(ROOT / "lambdas"))
