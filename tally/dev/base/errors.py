"""Errors on the local machine that a person at the terminal can fix."""


class LocalError(Exception):
    """An entry point prints it as one line and exits with 1."""
