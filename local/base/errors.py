"""What goes wrong on the local machine, in one line for the person at the terminal."""


class LocalError(Exception):
    """Printed as one line, with exit status 1."""
