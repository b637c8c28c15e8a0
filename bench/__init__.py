"""Measures several ways to count side by side, on one engine and in one run. Options: `python -m bench --help`.

`claims` lists each measurement, its module, and Tally's claims about its figures, such as the same play in six ways
(designs, plays), the stream consumers, and one hot key in a simulation. `cost` is the calculator of docs/cost.md.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# The measured code; a test of mutations puts its mutated copy before this folder.
sys.path.append(str(ROOT / "lambdas"))
