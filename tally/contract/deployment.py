"""What a deployment has beside code: tables, variables and times of functions, streams' mappings, CORS, the access log.

The stack makes it on AWS (tally/cdk), and `make dev` on this machine (tally/dev). Each fact of both stands here. What
only AWS has, such as roles and alarms, stands in tally/cdk.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from types import MappingProxyType
from typing import Any, NamedTuple

from tally.api.background import Schedule, StreamReader
from tally.api.needs import Table
from tally.api.operation import Route, UserVisibility
from tally.builtin import PAGE_VISITORS, is_listed
from tally.contract.stream_views import NEW_AND_OLD_IMAGES
from tally.counter import Counter
from tally.dynamo.keys import FORMAT
from tally.paths import version
from tally.settings import TeamTable


class TableSchema(NamedTuple):
    """The key of a table, and whether it has a stream, with old and new images. `has_backups`: it has backups."""

    partition_key: str
    sort_key: str | None
    has_stream: bool
    has_backups: bool = True


# No stream of the ledger: consumers write there, and must not feed themselves.
# Old images of receipts too: they distinguish a receipt that was edited by hand from a new one (both MODIFY).
TABLES: Mapping[Table, TableSchema] = {
    Table.COUNTS: TableSchema("PK", "SK", has_stream=True),
    Table.RECEIPTS: TableSchema("id", None, has_stream=True),
    Table.LEDGER: TableSchema("PK", "SK", has_stream=False),
}
# what is forgotten after the day is in no backup
SALTS_TABLE = TableSchema("PK", None, has_stream=False, has_backups=False)


def table_schemas(counters: Iterable[Counter]) -> Mapping[Table, TableSchema]:
    """The tables of a stack with these counters."""
    return {**TABLES, Table.SALTS: SALTS_TABLE} if is_listed(counters, PAGE_VISITORS) else TABLES


TTL_ATTRIBUTE = "expiration"  # the name that Powertools writes

TIMEOUT_S = 15  # retries of a contended change end before; API Gateway would wait for 30
SCHEDULED_TIMEOUT_S = 55  # a sweep judges as much as it can, and ends before the next one begins
CONSUMER_TIMEOUT_S = 60  # more than a batch of 1,000 records takes if each first commit fails
MEMORY_MB = 512  # 0.29 of a CPU: a call computes about 4 ms and waits 5 to 10 ms for DynamoDB

UNLIMITED = -1


class Delivery(NamedTuple):
    """How a stream reaches its consumers."""

    batch_records: int = 1000  # the more records are folded into one transaction, the fewer write units they take
    batch_window_s: int = 1  # of a reader that does not say otherwise (`window_s`)
    # Only because an event without a window lacks the stream shard's id. The longest that Lambda takes: it invokes the
    # consumer once more at the end of each, which at 60 s was half of what an idle stack invokes.
    tumbling_window_s: int = 15 * 60
    bisects: bool = True
    reports_failures: bool = True
    parallel: int = 1  # two invocations would share the checkpoint of one stream shard
    # Lambda never gives up a record: the consumer keeps those that fail as dead letters.
    retries: int = UNLIMITED
    age_s: int = UNLIMITED
    begins: str = "TRIM_HORIZON"  # includes changes from before the mapping


DELIVERY = Delivery()

CORS_HEADERS = ["authorization", "content-type", "idempotency-key", "if-match", "tally-secret"]
CORS_EXPOSED = ["Date", "ETag", "Idempotency-Replayed", "Retry-After"]  # Date: a client's own clock may be wrong
CORS_MAX_AGE_S = 24 * 3600  # browsers keep a preflight for a day at most
# A line has no text from the caller (path, query, user agent), which could leak. Each value stands between quotes: API
# Gateway writes a bare `-` where there is none, and escapes what would break the JSON.
ACCESS_LOG_FIELDS = {
    "requestId": "$context.requestId",
    "time": "$context.requestTime",
    "ip": "$context.identity.sourceIp",
    "route": "$context.routeKey",
    "status": "$context.status",
    "bytes": "$context.responseLength",
    "tookMs": "$context.responseLatency",
    "functionMs": "$context.integrationLatency",
    "functionError": "$context.integrationErrorMessage",
    "error": "$context.error.message",
    "authorizerError": "$context.authorizer.error",
}


class Surroundings(NamedTuple):
    """Where functions run: the names of what they use there."""

    service: str
    """The name of the stack, which every metric and log line has."""
    version: str
    tables: Mapping[Table, str]
    streams: Mapping[Table, str]
    """Their ARNs."""
    dead_letters: str
    page_hosts: str = ""
    likers: UserVisibility = UserVisibility.ANYONE
    receipt_ttl_hours: int | None = None
    series_days: int | None = None
    team_tables: Mapping[str, TeamTable] = MappingProxyType({})
    """The team's tables whose items counters count, by the names that the counters give them."""
    spot_check_units: int = 100
    event_bus: str = ""
    """The bus of events, by name or ARN; empty if no counter has thresholds."""
    has_cdn: bool = False
    """Whether CloudFront is before the API."""


def common_variables(place: Surroundings) -> dict[str, str]:
    """The variables of every function."""
    return {
        **_storage_variables(place),
        "TALLY_VERSION": place.version,
        "POWERTOOLS_SERVICE_NAME": place.service,
        "POWERTOOLS_METRICS_NAMESPACE": "Tally",
        "POWERTOOLS_LOG_LEVEL": "INFO",
        **({"TALLY_SERIES_DAYS": str(place.series_days)} if place.series_days else {}),
        **({} if place.likers is UserVisibility.ANYONE else {"TALLY_LIKERS_VISIBLE": place.likers.value}),
    }


def _storage_variables(place: Surroundings) -> dict[str, str]:
    """The variables that say where and how changes are stored."""
    return {
        **{f"TALLY_{table.name}_TABLE": name for table, name in place.tables.items()},
        **({"TALLY_RECEIPT_TTL_S": str(place.receipt_ttl_hours * 3600)} if place.receipt_ttl_hours else {}),
    }


def transact_variable(counters: Iterable[Counter], place: Surroundings) -> dict[str, Any]:
    """What the variable TALLY_TRANSACT says, as JSON, to a team's function that changes these counters by itself
    (tally/transact.py): it counts as Tally does, or does not start."""
    return {
        "format": FORMAT,
        "version": version(),
        "counters": [_non_default_fields(counter) for counter in counters],
        "settings": _storage_variables(place),
    }


def _non_default_fields(counter: Counter) -> dict[str, Any]:
    """The fields that are not their defaults. Lambda takes 4 KB of variables. Events are the bookkeeper's to make."""
    every = {field.name: (getattr(counter, field.name), field.default) for field in fields(counter)}
    every.pop("notify")
    return {name: value for name, (value, default) in every.items() if value != default}


def serving_variables(routes: Sequence[Route], place: Surroundings) -> dict[str, str]:
    """Those that a function which serves callers has beside: the hosts may be most of its variables."""
    knows = any(route.operation.uses_page_hosts for route in routes)
    looks = Table.SALTS in place.tables and any(route.operation.uses_client_address for route in routes)
    return {
        **({"TALLY_PAGE_HOSTS": place.page_hosts} if knows and place.page_hosts else {}),
        **({"TALLY_CDN": "true"} if looks and place.has_cdn else {}),
    }


def console_variables(name: str, routes: Sequence[Route], config: str, client: str) -> dict[str, str]:
    """Those that such a function has for people: what `/console/config.json` says, and whose tokens are those of
    people, to functions that scopes guard. `client`: who people sign in with; empty without users of the stack's own.
    """
    guarded = client and any(route.scope for route in routes)
    return {
        **({"TALLY_CONSOLE": config} if name == "console" else {}),
        **({"TALLY_CONSOLE_CLIENT": client} if guarded else {}),
    }


def consumer_variables(consumer: StreamReader, place: Surroundings) -> dict[str, str]:
    """Those that a stream consumer has beside."""
    own = {"TALLY_TEAM_TABLES": team_tables_json(place)} if consumer.team_tables else {}
    return {"TALLY_DEAD_LETTER_BUCKET": place.dead_letters, **own, **_event_bus_variable(consumer, place)}


def schedule_variables(schedule: Schedule, place: Surroundings) -> dict[str, str]:
    """Those that a function on a schedule has beside."""
    own = {"TALLY_TEAM_TABLES": team_tables_json(place)} if schedule.inspected_streams and place.team_tables else {}
    own |= {"TALLY_SPOT_CHECK_UNITS": str(place.spot_check_units)} if own and place.spot_check_units else {}
    return {
        **{f"TALLY_{table.name}_STREAM": place.streams[table] for table in schedule.inspected_streams},
        **own,
        **_event_bus_variable(schedule, place),
    }


def _event_bus_variable(sender: StreamReader | Schedule, place: Surroundings) -> dict[str, str]:
    """Those of a function that sends events."""
    return {"TALLY_EVENT_BUS": place.event_bus} if sender.sends_events and place.event_bus else {}


def team_tables_json(place: Surroundings) -> str:
    """The team's tables, as settings read them. Names and ARNs have no character that JSON escapes."""
    return json.dumps({name: table._asdict() for name, table in place.team_tables.items()})


def filter_patterns(consumer: StreamReader, table: Table) -> Iterator[dict[str, Any]]:
    """What a mapping lets through: a record that matches any of these, or every record if there are none.

    `marked` of StreamReader is asked for as the one value that its consumer acts on. AWS cannot ask for an attribute of
    any type: `exists` looks at leaves alone, and each type is another leaf.
    """
    kinds, prefix = consumer.streams[table], consumer.key_prefixes.get(table)
    if kinds:
        marked = (
            {"dynamodb": {"NewImage": {consumer.filter_attribute: {"BOOL": [True]}}}}
            if consumer.filter_attribute
            else {}
        )
        yield {"eventName": list(kinds), **marked}
        if prefix:
            yield {"dynamodb": {"Keys": {TABLES[table].partition_key: {"S": [{"prefix": prefix}]}}}}


def cors_methods(routes: Iterable[Route]) -> list[str]:
    """Those that browsers of other origins may use."""
    return sorted({route.method for route in routes})


def create_table_arguments(form: TableSchema) -> dict[str, Any]:
    """Those of CreateTable, but the name."""
    keys = [(name, kind) for name, kind in ((form.partition_key, "HASH"), (form.sort_key, "RANGE")) if name]
    stream = (
        {"StreamSpecification": {"StreamEnabled": True, "StreamViewType": NEW_AND_OLD_IMAGES}}
        if form.has_stream
        else {}
    )
    return {
        "KeySchema": [{"AttributeName": name, "KeyType": kind} for name, kind in keys],
        "AttributeDefinitions": [{"AttributeName": name, "AttributeType": "S"} for name, _ in keys],
        "BillingMode": "PAY_PER_REQUEST",
        **stream,
    }
