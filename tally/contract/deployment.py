"""What a deployment has besides code: tables, variables of functions, event source mappings, CORS, the access log.

tally/cdk uses these facts for AWS, and tally/dev for `make dev`. What only AWS has, such as roles and alarms, is in
tally/cdk.
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
    """The key of a table, whether it has a stream with old and new images, and whether it has backups."""

    partition_key: str
    sort_key: str | None
    has_stream: bool
    has_backups: bool = True


# The ledger has no stream, because consumers write there and would get their own writes as records.
# Receipts have old images, too. A stream reports a new receipt that replaces an expired receipt as MODIFY, like an edit
# by hand, and the old image distinguishes the two.
TABLES: Mapping[Table, TableSchema] = {
    Table.COUNTS: TableSchema("PK", "SK", has_stream=True),
    Table.RECEIPTS: TableSchema("id", None, has_stream=True),
    Table.LEDGER: TableSchema("PK", "SK", has_stream=False),
}
# Without a backup, which would keep salts longer than their day.
SALTS_TABLE = TableSchema("PK", None, has_stream=False, has_backups=False)


def table_schemas(counters: Iterable[Counter]) -> Mapping[Table, TableSchema]:
    """Returns the tables of a stack with these counters."""
    return {**TABLES, Table.SALTS: SALTS_TABLE} if is_listed(counters, PAGE_VISITORS) else TABLES


TTL_ATTRIBUTE = "expiration"  # the name in records of Powertools' idempotency, which receipts are

TIMEOUT_S = 15  # retries of a change after conflicts end earlier; API Gateway would wait for 30
SCHEDULED_TIMEOUT_S = 55  # a sweep judges as much as it can, and ends before the next one begins
CONSUMER_TIMEOUT_S = 60  # longer than a batch of 1,000 records takes, even if each transaction first fails once
MEMORY_MB = 512  # 0.29 of a CPU: a call computes about 4 ms and waits 5 to 10 ms for DynamoDB
UNLIMITED = -1  # retries, and the age of a record


class Delivery(NamedTuple):
    """How a stream reaches its consumers."""

    batch_records: int = 1000  # the more records one transaction folds, the fewer write units a record takes
    batch_window_s: int = 1  # the longest wait for a full batch; `StreamReader.window_s` replaces it
    # Without a window, an event lacks the id of its stream shard. Lambda invokes the consumer once more at the end of
    # each window: windows of 60 s would be half of an idle stack's invocations. So this is Lambda's longest window.
    tumbling_window_s: int = 15 * 60
    bisects: bool = True  # if a batch fails, Lambda sends each half by itself
    reports_failures: bool = True  # the consumer names the record from which Lambda sends again
    parallel: int = 1  # of two invocations for one stream shard, one would fail at the shared checkpoint
    # Lambda never gives up a record: the consumer keeps each record that fails as a dead letter.
    retries: int = UNLIMITED
    age_s: int = UNLIMITED
    begins: str = "TRIM_HORIZON"  # with the records from before the mapping


DELIVERY = Delivery()

CORS_HEADERS = ["authorization", "content-type", "idempotency-key", "if-match", "tally-secret"]
CORS_EXPOSED = ["Date", "ETag", "Idempotency-Replayed", "Retry-After"]  # Date: a client's own clock may be wrong
CORS_MAX_AGE_S = 24 * 3600  # browsers keep a preflight for a day at most
# A line has no text from the caller (path, query, user agent), which could leak. Each value is in quotes: API
# Gateway writes a bare `-` for a missing value, and escapes what would break the JSON.
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
    """The stack that functions run in: the names of the resources that they use, and the options that they read."""

    service: str  # the name of the stack, which every metric and log line has
    version: str  # of the code
    tables: Mapping[Table, str]
    streams: Mapping[Table, str]  # the ARNs of the tables' streams
    dead_letters: str  # the name of the bucket
    page_hosts: str = ""  # the hosts whose pages count, separated by commas
    likers_visible: UserVisibility = UserVisibility.ANYONE
    receipt_ttl_hours: int | None = None  # None: 24
    series_days: int | None = None  # None: series are kept for ever
    team_tables: Mapping[str, TeamTable] = MappingProxyType({})
    """The team's tables whose items counters count, by the names that the counters give them."""
    spot_check_units: int = 100  # read and write units that one check may take (team/spot_checks.py); 0: no checks
    event_bus: str = ""
    """The bus of events, by name or ARN; empty if no counter has thresholds."""
    has_cdn: bool = False  # whether CloudFront is in front of the API


def common_variables(stack: Surroundings) -> dict[str, str]:
    """Returns the variables of every function."""
    likers = stack.likers_visible
    return {
        **_storage_variables(stack),
        "TALLY_VERSION": stack.version,
        "POWERTOOLS_SERVICE_NAME": stack.service,
        "POWERTOOLS_METRICS_NAMESPACE": "Tally",
        "POWERTOOLS_LOG_LEVEL": "INFO",
        **({"TALLY_SERIES_DAYS": str(stack.series_days)} if stack.series_days else {}),
        **({} if likers is UserVisibility.ANYONE else {"TALLY_LIKERS_VISIBLE": likers.value}),
    }


def _storage_variables(stack: Surroundings) -> dict[str, str]:
    """Returns the variables that say where and how changes are stored."""
    return {
        **{f"TALLY_{table.name}_TABLE": name for table, name in stack.tables.items()},
        **({"TALLY_RECEIPT_TTL_S": str(stack.receipt_ttl_hours * 3600)} if stack.receipt_ttl_hours else {}),
    }


def transact_variable(counters: Iterable[Counter], stack: Surroundings) -> dict[str, Any]:
    """Returns the JSON of the variable TALLY_TRANSACT, with which a team's function changes these counters itself
    (tally/transact.py). If the function's package stores another format, the function does not start. Lambda takes
    4 KB of variables, so defaults are left out, and `notify`, because only the bookkeeper makes events."""
    defaults = {field.name: field.default for field in fields(Counter) if field.name != "notify"}
    declared = [
        {name: getattr(counter, name) for name, default in defaults.items() if getattr(counter, name) != default}
        for counter in counters
    ]
    return {"format": FORMAT, "version": version(), "counters": declared, "settings": _storage_variables(stack)}


def serving_variables(routes: Sequence[Route], stack: Surroundings) -> dict[str, str]:
    """Returns further variables that this function for callers reads. Hosts may take 3,200 bytes of Lambda's 4 KB."""
    uses_hosts = any(route.operation.uses_page_hosts for route in routes)
    uses_address = Table.SALTS in stack.tables and any(route.operation.uses_client_address for route in routes)
    return {
        **({"TALLY_PAGE_HOSTS": stack.page_hosts} if uses_hosts and stack.page_hosts else {}),
        **({"TALLY_CDN": "true"} if uses_address and stack.has_cdn else {}),
    }


def console_variables(name: str, routes: Sequence[Route], config: str, client: str) -> dict[str, str]:
    """Returns the console's variables of a function that serves callers. The function `console` gets `config`, the
    answer of `/console/config.json`. A function with scopes gets `client`, the id of the user pool's client with which
    people sign in to the console; `client` is empty without a user pool."""
    guarded = client and any(route.scope for route in routes)
    return {
        **({"TALLY_CONSOLE": config} if name == "console" else {}),
        **({"TALLY_CONSOLE_CLIENT": client} if guarded else {}),
    }


def consumer_variables(consumer: StreamReader, stack: Surroundings) -> dict[str, str]:
    """Returns further variables of a stream consumer."""
    tables = {"TALLY_TEAM_TABLES": team_tables_json(stack)} if consumer.team_tables else {}
    return {"TALLY_DEAD_LETTER_BUCKET": stack.dead_letters, **tables, **_event_bus_variable(consumer, stack)}


def schedule_variables(schedule: Schedule, stack: Surroundings) -> dict[str, str]:
    """Returns further variables of a function on a schedule. The sweep, which inspects streams, gets team tables."""
    tables = {"TALLY_TEAM_TABLES": team_tables_json(stack)} if schedule.inspected_streams and stack.team_tables else {}
    tables |= {"TALLY_SPOT_CHECK_UNITS": str(stack.spot_check_units)} if tables and stack.spot_check_units else {}
    return {
        **{f"TALLY_{table.name}_STREAM": stack.streams[table] for table in schedule.inspected_streams},
        **tables,
        **_event_bus_variable(schedule, stack),
    }


def _event_bus_variable(sender: StreamReader | Schedule, stack: Surroundings) -> dict[str, str]:
    """Returns the variable of a function that sends events."""
    return {"TALLY_EVENT_BUS": stack.event_bus} if sender.sends_events and stack.event_bus else {}


def team_tables_json(stack: Surroundings) -> str:
    """Returns the team's tables as JSON, which settings.py parses. No name or ARN has a character that JSON escapes."""
    return json.dumps({name: table._asdict() for name, table in stack.team_tables.items()})


def filter_patterns(consumer: StreamReader, table: Table) -> Iterator[dict[str, Any]]:
    """Yields the patterns of a mapping. A record must match one pattern; without patterns, every record passes. The
    first pattern compares `filter_attribute` with true, the only value that the consumer acts on. A pattern cannot ask
    whether the attribute exists, whatever its type: `exists` tests leaves only, and the leaf is the type (`BOOL`). The
    second pattern lets heartbeats pass, by the `prefix` of their keys."""
    event_names, prefix = consumer.streams[table], consumer.key_prefixes.get(table)
    if event_names:
        image = {"NewImage": {consumer.filter_attribute: {"BOOL": [True]}}}
        yield {"eventName": list(event_names), **({"dynamodb": image} if consumer.filter_attribute else {})}
        if prefix:
            yield {"dynamodb": {"Keys": {TABLES[table].partition_key: {"S": [{"prefix": prefix}]}}}}


def cors_methods(routes: Iterable[Route]) -> list[str]:
    """Returns the methods that browsers of other origins may use."""
    return sorted({route.method for route in routes})


def create_table_arguments(schema: TableSchema) -> dict[str, Any]:
    """Returns the arguments of CreateTable, without the name."""
    keys = [(name, kind) for name, kind in ((schema.partition_key, "HASH"), (schema.sort_key, "RANGE")) if name]
    stream = {"StreamSpecification": {"StreamEnabled": True, "StreamViewType": NEW_AND_OLD_IMAGES}}
    return {
        "KeySchema": [{"AttributeName": name, "KeyType": kind} for name, kind in keys],
        "AttributeDefinitions": [{"AttributeName": name, "AttributeType": "S"} for name, _ in keys],
        "BillingMode": "PAY_PER_REQUEST",
        **(stream if schema.has_stream else {}),
    }
