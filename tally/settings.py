"""The settings of a deployment: each function reads its environment once, at cold start."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from .errors import ConfigurationError

ANY_HOST = "*"
RECEIPT_TTL_DEFAULT_S = 24 * 3600  # longer than any sensible client retries
MINUTE_DEFAULT_S = 60
CONSOLE_DEFAULT = '{"stage": "", "stack": "", "region": "", "sign_in": {"kind": "token"}, "try_it": false, "docs": ""}'


class TeamTable(NamedTuple):
    """A team's table whose items counters count. `name`: its name in DynamoDB. `stream`: the ARN of its stream."""

    name: str
    stream: str


class Settings(NamedTuple):
    """The settings of one function. Immutable: a change means a new deployment."""

    counts_table: str
    receipts_table: str
    ledger_table: str
    page_hosts: frozenset[str]
    """Hosts whose pages count; `*` alone takes any host."""
    receipt_ttl_s: int  # for how long a receipt lives if its counter has no `receipt_days`
    version: str  # of the code
    salts_table: str = ""
    """Empty if the deployment counts no visitors of pages."""
    has_cdn: bool = False
    """Whether CloudFront writes the caller's address into X-Forwarded-For; False for functions that do not need it."""
    minute_s: int = MINUTE_DEFAULT_S
    """The length of a minute of the ledger: 60; less in `make dev`, where every wait is scaled down with it."""
    counts_stream: str = ""
    receipts_stream: str = ""
    """The ARNs of the tables' streams; empty for functions that do not look at the streams' shards."""
    dead_letter_bucket: str = ""
    """The bucket for dead letters; empty for functions that store no dead letters."""
    event_bus: str = ""
    """The EventBridge bus that gets events; empty for functions that send no events."""
    stack: str = ""
    """The name of the stack: `Tally-prod`."""
    alarm_topic: str = ""
    """The ARN of the topic of the stack's alarms; empty for functions that do not look at alarms."""
    local_port: int = 0
    """The port of `make dev`; 0 in AWS."""
    series_days: int = 0
    """For how many days series are kept; 0: for ever."""
    console: Mapping[str, Any] = json.loads(CONSOLE_DEFAULT)
    """The content of `/console/config.json`; the default for functions that do not serve it."""
    console_client: str = ""
    """The id of the user pool's client with which people sign in to the console; empty without a user pool."""
    team_tables: Mapping[str, TeamTable] = MappingProxyType({})
    """The team's tables, by the names that `Items` give them; empty for functions that do not read them."""
    spot_check_units: int = 0
    """How many read and write units a spot check of a counter of the team's items may take; 0: no spot checks."""

    def minute_of(self, epoch_s: float) -> int:
        """Returns the minute of the ledger that a time is in."""
        return int(epoch_s // self.minute_s)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Settings:
        """Reads and checks the environment.

        Raises ConfigurationError, which names the variable, because a function that would count wrongly must not start.
        """
        hosts = (host.strip().lower() for host in environment.get("TALLY_PAGE_HOSTS", "").split(","))
        return cls(
            counts_table=_required(environment, "TALLY_COUNTS_TABLE"),
            receipts_table=_required(environment, "TALLY_RECEIPTS_TABLE"),
            ledger_table=_required(environment, "TALLY_LEDGER_TABLE"),
            page_hosts=frozenset(host for host in hosts if host),
            receipt_ttl_s=_seconds(environment, "TALLY_RECEIPT_TTL_S", RECEIPT_TTL_DEFAULT_S),
            version=environment.get("TALLY_VERSION", "dev"),
            salts_table=environment.get("TALLY_SALTS_TABLE", "").strip(),
            has_cdn=environment.get("TALLY_CDN", "") == "true",
            minute_s=_seconds(environment, "TALLY_MINUTE_S", MINUTE_DEFAULT_S),
            counts_stream=environment.get("TALLY_COUNTS_STREAM", "").strip(),
            receipts_stream=environment.get("TALLY_RECEIPTS_STREAM", "").strip(),
            dead_letter_bucket=environment.get("TALLY_DEAD_LETTER_BUCKET", "").strip(),
            event_bus=environment.get("TALLY_EVENT_BUS", "").strip(),
            stack=environment.get("POWERTOOLS_SERVICE_NAME", "").strip(),
            alarm_topic=environment.get("TALLY_ALARM_TOPIC", "").strip(),
            local_port=int(environment.get("TALLY_LOCAL_PORT", "0")),
            series_days=int(environment.get("TALLY_SERIES_DAYS", "0")),
            console=_object(environment, "TALLY_CONSOLE", CONSOLE_DEFAULT),
            console_client=environment.get("TALLY_CONSOLE_CLIENT", "").strip(),
            spot_check_units=int(environment.get("TALLY_SPOT_CHECK_UNITS", "0")),
            team_tables=parse_team_tables(environment.get("TALLY_TEAM_TABLES", "{}")),
        )


def parse_team_tables(document: str) -> dict[str, TeamTable]:
    """Returns the team's tables, from `{"shop": {"name": "Shop-1X", "stream": "arn:…"}}`. Raises ConfigurationError."""
    try:
        return {str(name): TeamTable(**table) for name, table in json.loads(document).items()}
    except (ValueError, TypeError, AttributeError):
        detail = "TALLY_TEAM_TABLES must be a JSON object of tables, each with name and stream"
        raise ConfigurationError(detail) from None


def _seconds(environment: Mapping[str, str], name: str, default: int) -> int:
    value = environment.get(name, str(default))
    if not value.isascii() or not value.isdigit() or int(value) < 1:
        raise ConfigurationError(f"{name} is {value!r}, but must be a whole number of seconds, 1 or more")
    return int(value)


def _object(environment: Mapping[str, str], name: str, default: str) -> dict[str, Any]:
    try:
        document = json.loads(environment.get(name, default))
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise ConfigurationError(f"{name} must be a JSON object")
    return document


def _required(environment: Mapping[str, str], name: str) -> str:
    value = environment.get(name, "").strip()
    if not value:
        raise ConfigurationError(f"{name} is not set")
    return value
