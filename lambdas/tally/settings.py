"""What a deployment sets, read from the environment once, at cold start."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from .errors import ConfigurationError

ANY_HOST = "*"
RECEIPT_TTL_DEFAULT_S = 24 * 3600  # a day: longer than any sane client retries


@dataclass(frozen=True)
class Settings:
    """The environment of one function. Immutable: a change means a new deployment."""

    counts_table: str
    receipts_table: str
    ledger_table: str
    page_hosts: frozenset[str]
    """Hosts whose pages may be counted; `*` alone takes any host."""
    receipt_ttl_s: int
    version: str

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Settings:
        """Read and check the environment.

        Raises ConfigurationError, naming the variable: a function that would count wrongly must not start.
        """
        if environment.get("POWERTOOLS_IDEMPOTENCY_DISABLED", "").lower() in {"1", "true", "yes", "on", "y", "t"}:
            raise ConfigurationError("POWERTOOLS_IDEMPOTENCY_DISABLED is set: retries would count twice")
        hosts = (host.strip().lower() for host in environment.get("TALLY_PAGE_HOSTS", "").split(","))
        ttl_s = environment.get("TALLY_RECEIPT_TTL_S", str(RECEIPT_TTL_DEFAULT_S))
        if not ttl_s.isascii() or not ttl_s.isdigit() or int(ttl_s) < 1:
            raise ConfigurationError(f"TALLY_RECEIPT_TTL_S is {ttl_s!r}: it must be a whole number of seconds from 1")
        return cls(
            counts_table=_required(environment, "TALLY_COUNTS_TABLE"),
            receipts_table=_required(environment, "TALLY_RECEIPTS_TABLE"),
            ledger_table=_required(environment, "TALLY_LEDGER_TABLE"),
            page_hosts=frozenset(host for host in hosts if host),
            receipt_ttl_s=int(ttl_s),
            version=environment.get("TALLY_VERSION", "dev"),
        )


def _required(environment: Mapping[str, str], name: str) -> str:
    value = environment.get(name, "").strip()
    if not value:
        raise ConfigurationError(f"{name} is not set")
    return value
