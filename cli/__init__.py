"""The command `tally`: looks at what the numbers say, and mends them."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "lambdas"))  # the counting core, and the declarations
