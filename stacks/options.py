"""The options of a deployment, from the CDK context: `cdk deploy -c stage=prod -c pageHosts=example.com`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

DEV = "dev"
_STAGE = re.compile(r"[a-z][a-z0-9-]{0,15}")
_HOST = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")  # without a port, as lambdas/tally/fields.py compares it
_USD = re.compile(r"[1-9][0-9]{0,5}")
_EMAIL = re.compile(r"[^@\s]+@[^@\s]+\.[^@\s]+")
_WHOLE = re.compile(r"[1-9][0-9]{0,8}")
WARM_WRITES_MIN, WARM_READS_MIN = 4000, 12000  # every on-demand table starts with this, and AWS refuses less
RESERVED_MIN = 10  # of a consumer: a new table's two streams have eight shards, each with an invocation of its own
RESERVED_MAX = 10_000
WARM_MAX = 10**7  # far above any quota; AWS enforces the account's own (usually 40,000 of each a table)
_KEYS = (
    "stage",
    "issuer",
    "audience",
    "pageHosts",
    "corsOrigins",
    "budgetUsd",
    "budgetEmail",
    "alarmEmail",
    "warmWrites",
    "warmReads",
    "reservedConcurrency",
)
_REMOVED = {
    "settleSeconds": "a minute is judged once both consumers have provably passed it, so there is no time to choose",
}


class OptionsError(Exception):
    """The context is wrong. The message is one line, for the person who deploys."""


@dataclass(frozen=True)
class Options:
    """The choices of one deployment. Immutable."""

    stage: str = DEV
    issuer: str | None = None
    """The issuer of the tokens; None: the stack makes a Cognito user pool."""
    audience: tuple[str, ...] = ()
    page_hosts: tuple[str, ...] = ()
    """The hosts whose pages count; `*` alone means any host."""
    cors_origins: tuple[str, ...] = ("*",)
    budget_usd: int | None = None
    """The account's budget for a month in US dollars; None: no budget alarm."""
    budget_email: str | None = None
    alarm_email: str | None = None
    """Who gets a mail when an alarm goes off; None: only those who subscribe to the topic."""
    warm_writes: int | None = None
    """Write units a second that counts and receipts take from the start; None: AWS's default."""
    warm_reads: int | None = None
    reserved_concurrency: int | None = None
    """Invocations at once that are reserved for each stream consumer; the sweep then gets one. None: no reservation."""

    @property
    def keeps_data(self) -> bool:
        """Whether tables and user pool outlive the stack, and are protected from deletion."""
        return self.stage != DEV

    @classmethod
    def from_context(cls, context: Mapping[str, Any]) -> Options:
        """Read and check the context. An empty value counts as missing. Raises OptionsError."""
        _refuse_unknown(context)
        given = {key: _text(context, key) for key in _KEYS if _text(context, key)}
        if ("issuer" in given) != ("audience" in given):
            raise OptionsError("context issuer and audience go together: give both, or neither for a Cognito user pool")
        if ("budgetUsd" in given) != ("budgetEmail" in given):
            raise OptionsError("context budgetUsd and budgetEmail go together: give both, or neither")
        return cls(
            stage=_stage(given),
            issuer=_issuer(given),
            audience=_audience(given),
            page_hosts=_page_hosts(given),
            cors_origins=_cors_origins(given),
            budget_usd=_budget(given),
            budget_email=_email(given, "budgetEmail"),
            alarm_email=_email(given, "alarmEmail"),
            warm_writes=_whole(given, "warmWrites", WARM_WRITES_MIN, WARM_MAX),
            warm_reads=_whole(given, "warmReads", WARM_READS_MIN, WARM_MAX),
            reserved_concurrency=_whole(given, "reservedConcurrency", RESERVED_MIN, RESERVED_MAX),
        )


def _refuse_unknown(context: Mapping[str, Any]) -> None:
    """A misspelt `-c Stage=prod` would deploy a stack without protection. CDK's own keys have `:` or `@`."""
    unknown = sorted(key for key in context if key not in _KEYS and ":" not in key and "@" not in key)
    for key in unknown:
        if key in _REMOVED:
            raise OptionsError(f"context {key} is no option any more: {_REMOVED[key]}. Remove it")
    if unknown:
        raise OptionsError(f"context {unknown[0]!r} is unknown: there are {', '.join(_KEYS)}")


def _text(context: Mapping[str, Any], key: str) -> str:
    value = context.get(key) or ""
    if not isinstance(value, str):
        raise OptionsError(f"context {key} is {value!r}: it must be text")
    return value.strip()


def _stage(given: Mapping[str, str]) -> str:
    stage = given.get("stage", DEV)
    if not _STAGE.fullmatch(stage):
        raise OptionsError(f"context stage is {stage!r}: it must be a lower case letter, then up to 15 of a-z 0-9 -")
    return stage


def _listed(given: Mapping[str, str], key: str) -> tuple[str, ...]:
    """A comma separated list, without empty entries, in the order given, each once."""
    return tuple(dict.fromkeys(entry.strip() for entry in given.get(key, "").split(",") if entry.strip()))


def _issuer(given: Mapping[str, str]) -> str | None:
    issuer = given.get("issuer")
    if issuer is not None:
        scheme, host = _origin(issuer)
        if scheme != "https" or not host:
            raise OptionsError(f"context issuer is {issuer!r}: API Gateway takes only https://…")
    return issuer


def _origin(url: str) -> tuple[str, str]:
    """Scheme and host with port; both empty if this is not a URL."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "", ""
    return parts.scheme, parts.netloc


def _audience(given: Mapping[str, str]) -> tuple[str, ...]:
    audience = _listed(given, "audience")
    if "audience" in given and not audience:
        raise OptionsError(f"context audience is {given['audience']!r}: it names nobody")
    return audience


def _page_hosts(given: Mapping[str, str]) -> tuple[str, ...]:
    hosts = tuple(host.lower() for host in _listed(given, "pageHosts"))
    if hosts == ("*",):
        return hosts
    for host in hosts:
        if not _HOST.fullmatch(host):
            raise OptionsError(f"context pageHosts has {host!r}: give hosts like example.com, or * alone for any")
    return hosts


def _cors_origins(given: Mapping[str, str]) -> tuple[str, ...]:
    origins = _listed(given, "corsOrigins") or ("*",)
    if origins == ("*",):
        return origins
    for origin in origins:
        scheme, host = _origin(origin)
        if scheme not in {"http", "https"} or not host or origin != f"{scheme}://{host}":
            raise OptionsError(f"context corsOrigins has {origin!r}: give origins like https://example.com, or * alone")
    return origins


def _email(given: Mapping[str, str], key: str) -> str | None:
    email = given.get(key)
    if email is not None and not _EMAIL.fullmatch(email):
        raise OptionsError(f"context {key} is {email!r}: it must be a mail address")
    return email


def _whole(given: Mapping[str, str], key: str, lowest: int, highest: int) -> int | None:
    value = given.get(key)
    if value is None:
        return None
    if not _WHOLE.fullmatch(value) or not lowest <= int(value) <= highest:
        raise OptionsError(f"context {key} is {value!r}: it must be a whole number from {lowest} to {highest}")
    return int(value)


def _budget(given: Mapping[str, str]) -> int | None:
    usd = given.get("budgetUsd")
    if usd is None:
        return None
    if not _USD.fullmatch(usd):
        raise OptionsError(f"context budgetUsd is {usd!r}: it must be whole US dollars a month, from 1 to 999999")
    return int(usd)
