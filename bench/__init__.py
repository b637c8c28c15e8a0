"""Side-by-side measurements on one engine, in one run. `python -m bench --help`.

`claims` lists what is measured, by which module, and what Tally claims of it: the same play in six ways (designs,
plays), many plays at once, the imports of a hot handler, the stream consumers, the journal and its judge, one hot key
in a simulation, and the local stack. `cost` is the calculator of docs/cost.md.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "lambdas"))  # what is measured; behind the mutated copy, if a test runs on one
