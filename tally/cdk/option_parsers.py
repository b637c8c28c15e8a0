"""Parsers of options: each takes the text of an option, and returns the value to use."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

# Lambda takes 4,096 bytes of variables for a function: the hosts, and 896 bytes for the rest (quotas.py checks them).
PAGE_HOSTS_BYTES_MAX = 3200
_STAGE_PATTERN = "[a-z][a-z0-9-]{0,15}"
RESERVED_BY_COGNITO = ("aws", "amazon", "cognito")  # not in a user pool's domain, which has the name of the stage
_HOST_PATTERN = "[a-z0-9_]([a-z0-9._-]{0,251}[a-z0-9_])?"  # without a port, as tally/fields.py compares it
# An origin as a browser sends it, without the scheme's default port, because API Gateway compares origins as text.
_ORIGIN_PATTERN = rf"(?!http:.*:80$|https:.*:443$)https?://(\*|\[[0-9a-f:]+\]|{_HOST_PATTERN})(:[1-9][0-9]{{0,4}})?"
_DOMAIN_NAME_PATTERN = r"(?=.{4,64}\Z)([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z]([a-z0-9-]{0,61}[a-z0-9])"
_CERTIFICATE_PATTERN = r"arn:aws(?:-[a-z-]+)?:acm:[a-z0-9-]+:[0-9]{12}:certificate/[0-9a-zA-Z-]+"
VAULT_PATTERN = r"arn:aws(?:-[a-z-]+)?:backup:[a-z0-9-]+:[0-9]{12}:backup-vault:[a-zA-Z0-9_-]{2,50}"
_EVENT_BUS_PATTERN = r"arn:aws(?:-[a-z-]+)?:events:[a-z0-9-]+:[0-9]{12}:event-bus/[A-Za-z0-9._/-]{1,256}"
_S3_OBJECT_PATTERN = "s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]/[!-~]{1,1024}"
_RESTORED_TABLES_PATTERN = re.compile(rf"Tally-({_STAGE_PATTERN})-([0-9]{{8}}T[0-9]{{6}})")

Parser = Callable[[str], Any]
"""Parses the text of an option. None: as if not given. The message of an OptionsError follows the option's name."""


class OptionsError(Exception):
    """An option is wrong. The message is one line, for the deployer."""


def matching(pattern: str, must: str, to: Callable[[str], Any] = str) -> Parser:
    """Returns a parser of text that matches a pattern entirely. `must`: the pattern in words. `to` makes the value."""

    def read(text: str) -> Any:
        if not re.fullmatch(pattern, text):
            raise OptionsError(f"is {text!r}: it must be {must}")
        return to(text)

    return read


def whole(lowest: int, highest: int) -> Parser:
    """Returns a parser of whole numbers from `lowest` to `highest`."""

    def read(text: str) -> int:
        if not re.fullmatch("0|[1-9][0-9]{0,9}", text) or not lowest <= int(text) <= highest:
            raise OptionsError(f"is {text!r}: it must be a whole number from {lowest} to {highest}")
        return int(text)

    return read


def one_of(choices: Mapping[str, Any]) -> Parser:
    """Returns a parser that takes one of these words, and returns the word's value."""

    def read(text: str) -> Any:
        if text not in choices:
            raise OptionsError(f"is {text!r}: it must be one of {', '.join(choices)}")
        return choices[text]

    return read


def list_of(fits: Callable[[str], object], what: str) -> Parser:
    """Returns a parser of entries between commas that fit, or of `*` alone. `what`: the entries in words."""

    def read(text: str) -> tuple[str, ...] | None:
        entries = _split_list(text)
        for entry in entries if entries != ("*",) else ():
            if not fits(entry):
                raise OptionsError(f"has {entry!r}: give {what}, or * alone for any")
        return entries or None

    return read


def _split_list(text: str) -> tuple[str, ...]:
    """Returns the entries between commas, in the order given, each once, without empty entries."""
    return tuple(dict.fromkeys(entry.strip() for entry in text.split(",") if entry.strip()))


def stage(text: str) -> str:
    """Returns the name of a stage."""
    name: str = matching(_STAGE_PATTERN, "a lower case letter, then up to 15 of a-z 0-9 -")(text)
    for word in RESERVED_BY_COGNITO:
        if word in name:
            raise OptionsError(f"is {name!r}: Cognito refuses a domain with {word!r} in it")
    return name


def issuer(text: str) -> str:
    """Returns the URL of an issuer of tokens."""
    try:
        is_https = urlsplit(text).scheme == "https" and urlsplit(text).netloc != ""
    except ValueError:
        is_https = False
    if not is_https:
        raise OptionsError(f"is {text!r}: API Gateway takes only https://…")
    return text


def audience(text: str) -> tuple[str, ...]:
    """Returns at least one audience."""
    if not _split_list(text):
        raise OptionsError(f"is {text!r}: give at least one audience")
    return _split_list(text)


def hosts(text: str) -> tuple[str, ...] | None:
    """Returns the hosts whose pages count, in lower case."""
    names: tuple[str, ...] | None = list_of(re.compile(_HOST_PATTERN).fullmatch, "hosts like example.com")(text.lower())
    length = len(",".join(names or ()))
    if names and length > PAGE_HOSTS_BYTES_MAX:
        why = f"Lambda takes {PAGE_HOSTS_BYTES_MAX}; give * alone, and refuse other hosts in front of the API"
        raise OptionsError(f"has {len(names)} hosts of {length} bytes together: {why}")
    return names


def restored_times(text: str) -> dict[str, str]:
    """Returns the time in the names of restored tables, by stage: all stages share `cdk.json`."""
    moments: dict[str, str] = {}
    for entry in _split_list(text):
        table = _RESTORED_TABLES_PATTERN.fullmatch(entry)
        if not table:
            raise OptionsError(f"has {entry!r}: give what `tally restore` prints, Tally-STAGE-MOMENT")
        if table[1] in moments:
            raise OptionsError(f"has 2 moments for the stage {table[1]}: give one")
        moments[table[1]] = table[2]
    return moments


domain_name = matching(_DOMAIN_NAME_PATTERN, "a name like api.example.com, in lower case")
certificate = matching(_CERTIFICATE_PATTERN, "arn:aws:acm:<region>:<account>:certificate/…")
vault = matching(VAULT_PATTERN, "arn:aws:backup:<region>:<account>:backup-vault:<name>")
event_bus = matching(_EVENT_BUS_PATTERN, "arn:aws:events:<region>:<account>:event-bus/<name>")
email = matching(r"[^@\s]+@[^@\s]+\.[^@\s]+", "a mail address")
folder_url = matching("https://[!-~]+", "https://… of the folder docs", lambda url: url.rstrip("/"))
share = matching(r"0|1|0?\.[0-9]{1,6}|1\.0{1,6}", "a share from 0 to 1, as 0.05", float)
origins = list_of(re.compile(_ORIGIN_PATTERN).fullmatch, "origins like https://example.com")
s3_object = matching(_S3_OBJECT_PATTERN, "s3://bucket/key")
yes_no = one_of({"true": True, "false": False})
