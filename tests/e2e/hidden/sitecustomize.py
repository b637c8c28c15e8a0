"""Hides the native part of AWS's runtime client from a Python that starts with this folder on its PYTHONPATH."""

import sys

sys.modules["runtime_client"] = None  # type: ignore[assignment]  # as if it was not installed
