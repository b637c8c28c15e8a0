"""Reads the event source mappings of a template for the pump of `make dev`."""

from __future__ import annotations

import json

from tally.dev.stack.mappings import StreamMapping, read_mapping
from tests.infra.template import Json, Template

_NAMES = {
    "BatchSize": "batch_records",
    "MaximumBatchingWindowInSeconds": "batch_window_s",
    "TumblingWindowInSeconds": "tumbling_window_s",
    "BisectBatchOnFunctionError": "bisects",
    "ParallelizationFactor": "parallel",
    "MaximumRetryAttempts": "retries",
    "MaximumRecordAgeInSeconds": "age_s",
    "StartingPosition": "begins",
}
_LEFT_OUT = {"Enabled", "Tags"}


def properties(template: Template) -> dict[tuple[str, str], Json]:
    """Returns the properties of the mappings, by function and table."""
    aliases = {template.alias_of(name): module for module, name in template.functions().items()}
    found = {}
    for mapping in template.of_type("AWS::Lambda::EventSourceMapping").values():
        of = mapping["Properties"]
        table, attribute = of["EventSourceArn"]["Fn::GetAtt"]
        assert attribute == "StreamArn"
        assert (aliases[of["FunctionName"]["Ref"]], table) not in found
        found[aliases[of["FunctionName"]["Ref"]], table] = of
    return found


def mappings(template: Template) -> dict[tuple[str, str], StreamMapping]:
    """Returns the mappings, by function and table. Raises LocalError for a mapping that the pump cannot emulate."""
    return {which: read_mapping(_plain(*which, of)) for which, of in properties(template).items()}


def _plain(function: str, table: str, of: Json) -> Json:
    found = {_NAMES.get(name, name): value for name, value in of.items() if name not in _LEFT_OUT}
    for name in ("EventSourceArn", "FunctionName"):
        del found[name]
    patterns = [json.loads(one["Pattern"]) for one in found.pop("FilterCriteria", {"Filters": []})["Filters"]]
    reports = found.pop("FunctionResponseTypes", None) == ["ReportBatchItemFailures"]
    return {
        "name": f"{function} of {table}", "function": function, "table": table, "filters": patterns,
        "reports_failures": reports, **found,
    }  # fmt: skip
