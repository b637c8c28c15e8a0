"""A whole deployment as JSON, for a stack that CloudFormation does not make, such as the stack of `make dev`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tally.dynamo.keys import FORMAT

from . import deployment
from .declarations import Declarations
from .deployment import DELIVERY, Surroundings

Document = dict[str, Any]


def deployment_document(declared: Declarations, stack: Surroundings, config: str, client: str) -> Document:
    """Returns the document. `config`: the answer of `/console/config.json`. `client`: the console's client id."""
    stack = stack if declared.notifies else stack._replace(event_bus="")
    schemas = deployment.table_schemas(declared.counters.values())
    batchable = [counter for counter in declared.counters.values() if counter.is_batchable]
    return {
        "tables": {stack.tables[table]: deployment.create_table_arguments(schema) for table, schema in schemas.items()},
        "ttl_attribute": deployment.TTL_ATTRIBUTE,
        "functions": dict(_functions(declared, stack, config, client)),
        "routes": [
            {
                "method": method, "path": route.path, "function": name, "signed_in": route.needs_caller,
                "scope": route.scope, "throttle": [route.throttle.rate_per_s, route.throttle.burst],
            }
            for name, routes in declared.routes_by_function.items()
            for route in filter(None, (one.as_deployed(stack.likers_visible) for one in routes))
            for method in route.methods
        ],
        "cors": {
            "origins": ["*"],
            "methods": deployment.cors_methods(declared.routes),
            "headers": deployment.CORS_HEADERS,
            "exposed": deployment.CORS_EXPOSED,
            "max_age_s": deployment.CORS_MAX_AGE_S,
        },
        "access_log_format": json.dumps(deployment.ACCESS_LOG_FIELDS),
        "schedules": [[one.function, one.every_min * 60] for one in declared.schedules],
        "mappings": list(_mappings(declared, stack)),
        "outputs": {"Version": stack.version, "StorageFormat": str(FORMAT), "Counters": ", ".join(declared.counters)},
        "transact": deployment.transact_variable(batchable, stack),
        "warnings": declared.warnings,
    }  # fmt: skip


def _functions(declared: Declarations, stack: Surroundings, config: str, client: str) -> Iterator[tuple[str, Document]]:
    common = deployment.common_variables(stack)

    def function(name: str, timeout_s: int, variables: dict[str, str]) -> tuple[str, Document]:
        return name, {"timeout_s": timeout_s, "memory_mb": deployment.MEMORY_MB, "environment": {**common, **variables}}

    for name, routes in declared.routes_by_function.items():
        variables = deployment.console_variables(name, routes, config, client)
        yield function(name, deployment.TIMEOUT_S, {**deployment.serving_variables(routes, stack), **variables})
    for schedule in declared.schedules:
        variables = deployment.schedule_variables(schedule, stack)
        yield function(schedule.function, deployment.SCHEDULED_TIMEOUT_S, variables)
    for reader in declared.readers:
        variables = deployment.consumer_variables(reader, stack)
        yield function(reader.function, deployment.CONSUMER_TIMEOUT_S, variables)


def _mappings(declared: Declarations, stack: Surroundings) -> Iterator[Document]:
    """Yields the mappings of each consumer: of Tally's tables, and of the team's tables with their counters."""
    for consumer in declared.readers:
        function, delivery = consumer.function, DELIVERY._replace(batch_window_s=consumer.window_s)._asdict()
        for table in consumer.streams:
            name, filters = f"{function}{table.value.capitalize()}", list(deployment.filter_patterns(consumer, table))
            yield {"name": name, "table": stack.tables[table], "function": function, "filters": filters, **delivery}
        for table_name in consumer.team_tables:
            name, counters = f"{function} of {table_name}", declared.team_tables[table_name]
            shared = {"function": function, "filters": [], **delivery}
            yield {"name": name, "table": table_name, "counters": counters, **shared}
