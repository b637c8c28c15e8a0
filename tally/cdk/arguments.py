"""The options of a deployment, from a construct's arguments: `Tally(self, "Tally", …, page_hosts=["example.com"])`.

An option's argument is its field in `Options`. Messages name the argument. A CDN is no part of a
construct: it is a stack of its own in another region.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from enum import Enum

from .options import DEV, Options, OptionsError

KEPT, LOST = "prod", DEV
"""The stages that a construct is like: with `keep_data`, and without."""
_OF_A_STACK = {
    "stage", "cdn", "origin_name", "cdn_certificate_arn", "client_rate", "edge_logs_days",
    "cdn_client_certificate_arn", "origin_trust_store",
}  # fmt: skip
ARGUMENTS = {each.name: each.metadata["name"] for each in fields(Options) if each.name not in _OF_A_STACK}
"""The name in the context of each argument."""
_BY_NAME = {name: argument for argument, name in ARGUMENTS.items()}
# A name with capitals is no other word; one without stands behind "context".
_NAMED = re.compile(rf"\bcontext (\w+)|\b({'|'.join(name for name in _BY_NAME if not name.islower())})\b")


def chosen(given: Mapping[str, object], *, keep_data: bool) -> Options:
    """The options of a construct. None counts as missing. Raises OptionsError."""
    for name in given:
        if name not in ARGUMENTS:
            raise OptionsError(f"{name} is no option of Tally: there are keep_data, {', '.join(ARGUMENTS)}")
    stage = KEPT if keep_data else LOST
    texts = {ARGUMENTS[name]: _text(name, value) for name, value in given.items() if value is not None}
    if "tables" in texts:
        texts["tables"] = f"Tally-{stage}-{texts['tables']}"  # in a context each stage has a moment of its own
    try:
        return Options.from_context({"stage": stage, **texts})
    except OptionsError as error:
        raise OptionsError(_by_argument(str(error))) from None


def _text(name: str, value: object) -> str:
    """The value as a context has it."""
    match value:
        case bool():
            return str(value).lower()
        case Enum():
            return str(value.value)
        case int() | float():
            return f"{value:.6f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
        case str():
            return value
        case list() | tuple() if all(isinstance(entry, str) for entry in value):
            return ",".join(value)
    raise OptionsError(f"{name} is {value!r}: it must be text, a number, True, False, or a list of texts")


def _by_argument(message: str) -> str:
    """The message with the names of arguments."""
    return _NAMED.sub(lambda found: _BY_NAME[found[1] or found[2]], message)
