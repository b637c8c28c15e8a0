"""Drift: the judge of the ledger, the drift rows, recounts and repairs."""
