"""The options of a deployment, from the CDK context: `cdk deploy -c stage=prod -c pageHosts=example.com`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from tally.operation import Visible

from . import front_door_options
from .front_door_options import FrontDoor
from .option_error import OptionsError as OptionsError

DEV = "dev"
_STAGE = re.compile(r"[a-z][a-z0-9-]{0,15}")
_HOST = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")  # without a port, as lambdas/tally/fields.py compares it
_USD = re.compile(r"[1-9][0-9]{0,5}")
_EMAIL = re.compile(r"[^@\s]+@[^@\s]+\.[^@\s]+")
_WHOLE = re.compile(r"[1-9][0-9]{0,8}")
WARM_WRITES_MIN, WARM_READS_MIN = 4000, 12000  # every on-demand table starts with this, and AWS refuses less
RESERVED_MIN = 10  # of a consumer: a new table's two streams have eight shards, each with an invocation of its own
RESERVED_MAX = 10_000
LIKERS_VISIBLE = tuple(visible.value for visible in Visible)
DEAD_LETTER_DAYS, DEAD_LETTER_DAYS_MAX = 90, 3650
SERIES_DAYS_MAX = 36_500
WARM_MAX = 10**7  # far above any quota; AWS enforces the account's own (usually 40,000 of each a table)
# API callers may rely on 24 hours. The rollup keeps what is written alone for 8 days: a receipt must not outlive that.
RECEIPT_TTL_MIN_H, RECEIPT_TTL_MAX_H = 24, 168
_KEPT_BY_COGNITO = ("aws", "amazon", "cognito")  # it refuses these in the domain of a user pool, which has the stage
_KEYS = (
    "stage",
    "issuer",
    "audience",
    "pageHosts",
    "corsOrigins",
    *front_door_options.KEYS,
    "budgetUsd",
    "budgetEmail",
    "alarmEmail",
    "warmWrites",
    "warmReads",
    "reservedConcurrency",
    "receiptTtlHours",
    "snapStart",
    "tracing",
    "logSampling",
    "likersVisible",
    "deadLetterDays",
    "seriesDays",
    "tables",
)
TRACING = ("callers", "all", "off")
_SHARE = re.compile(r"0|1|0?\.[0-9]{1,6}|1\.0{1,6}")
_TABLES = re.compile(rf"Tally-({_STAGE.pattern})-([0-9]{{8}}T[0-9]{{6}})")


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
    front_door: FrontDoor | None = None
    """The API's own domain and CDN; None: the address that AWS gives."""
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
    receipt_ttl_hours: int | None = None
    """How long a receipt lives, and so how long a retry is recognised; None: 24 hours."""
    snap_start: bool | None = None
    """Whether the functions that callers wait for start from a snapshot, which AWS bills; None: not in dev."""
    tracing: str = TRACING[0]
    """Which functions X-Ray traces: those that `callers` wait for, `all`, or none (`off`)."""
    log_sampling: float = 1.0
    """The share of the invocations that log their successes. Errors and refusals are always logged."""
    likers_visible: Visible = Visible.ANYONE
    """Who sees over HTTP which users like a post."""
    dead_letter_days: int = DEAD_LETTER_DAYS
    """A dead letter that nobody redrove expires after so many days."""
    series_days: int | None = None
    """For how many days series are kept; None: for ever."""

    restored: str | None = None
    """The moment to which the stack's tables were restored: `20261122T103000`; None: they were never restored."""

    @property
    def snapshots(self) -> bool:
        """Whether functions start from snapshots."""
        return self.stage != DEV if self.snap_start is None else self.snap_start

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
            front_door=FrontDoor.read(given),
            budget_usd=_budget(given),
            budget_email=_email(given, "budgetEmail"),
            alarm_email=_email(given, "alarmEmail"),
            warm_writes=_whole(given, "warmWrites", WARM_WRITES_MIN, WARM_MAX),
            warm_reads=_whole(given, "warmReads", WARM_READS_MIN, WARM_MAX),
            restored=_restored(given),
            reserved_concurrency=_whole(given, "reservedConcurrency", RESERVED_MIN, RESERVED_MAX),
            receipt_ttl_hours=_whole(given, "receiptTtlHours", RECEIPT_TTL_MIN_H, RECEIPT_TTL_MAX_H),
            snap_start={None: None, "true": True, "false": False}[_one_of(given, "snapStart", ("true", "false"))],
            tracing=_one_of(given, "tracing", TRACING) or TRACING[0],
            log_sampling=_share(given, "logSampling"),
            likers_visible=Visible(_one_of(given, "likersVisible", LIKERS_VISIBLE) or Visible.ANYONE),
            dead_letter_days=_whole(given, "deadLetterDays", 1, DEAD_LETTER_DAYS_MAX) or DEAD_LETTER_DAYS,
            series_days=_whole(given, "seriesDays", 1, SERIES_DAYS_MAX),
        )


def _refuse_unknown(context: Mapping[str, Any]) -> None:
    """A misspelt `-c Stage=prod` would deploy a stack without protection. CDK's own keys have `:` or `@`."""
    unknown = sorted(key for key in context if key not in _KEYS and ":" not in key and "@" not in key)
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
    for word in _KEPT_BY_COGNITO:
        if word in stage:
            raise OptionsError(f"context stage is {stage!r}: Cognito takes no domain with {word!r} in it")
    return stage


def _restored(given: Mapping[str, str]) -> str | None:
    """The moment of this stage's tables. Other stages have theirs in the same list: all share `cdk.json`."""
    moments: list[str] = []
    for entry in _listed(given, "tables"):
        found = _TABLES.fullmatch(entry)
        if not found:
            raise OptionsError(f"context tables has {entry!r}: give what `tally restore` prints, Tally-STAGE-MOMENT")
        if found[1] == _stage(given):
            moments.append(found[2])
    if len(moments) > 1:
        raise OptionsError(f"context tables has {len(moments)} moments for the stage {_stage(given)}: give one")
    return moments[0] if moments else None


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


def _one_of(given: Mapping[str, str], key: str, choices: tuple[str, ...]) -> str | None:
    value = given.get(key)
    if value is not None and value not in choices:
        raise OptionsError(f"context {key} is {value!r}: it must be one of {', '.join(choices)}")
    return value


def _share(given: Mapping[str, str], key: str) -> float:
    value = given.get(key, "1")
    if not _SHARE.fullmatch(value):
        raise OptionsError(f"context {key} is {value!r}: it must be a share from 0 to 1, as 0.05")
    return float(value)
