"""Sets the variable of CDK's runtime that hides a warning about Node, as the tests of the template do."""

from __future__ import annotations

import os

os.environ.setdefault("JSII_SILENCE_WARNING_END_OF_LIFE_NODE_VERSION", "20")
