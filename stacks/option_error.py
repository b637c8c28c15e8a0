"""The refusal of a deployment's options."""


class OptionsError(Exception):
    """The context is wrong. The message is one line, for the person who deploys."""
