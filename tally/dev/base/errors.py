"""Errors on this machine that a person at the terminal can fix."""


class LocalError(Exception):
    """An entry point prints the error as one line and exits with 1."""
