"""Reads the event source mappings of a template as the pump reads mappings. In `make dev` the pump delivers records."""

from __future__ import annotations

import json

from tally.dev.stack.mappings import StreamMapping, read_mapping
from tests.infra.template import Json, Template

_NAMES = {  # by property of CloudFormation: the name in the description of a local stack
    "BatchSize": "batch_records",
    "MaximumBatchingWindowInSeconds": "batch_window_s",
    "TumblingWindowInSeconds": "tumbling_window_s",
    "BisectBatchOnFunctionError": "bisects",
    "ParallelizationFactor": "parallel",
    "MaximumRetryAttempts": "retries",
    "MaximumRecordAgeInSeconds": "age_s",
    "StartingPosition": "begins",
}
_WITHOUT_NAME = {"Enabled", "Tags"}  # properties that the description does not have


def properties(template: Template) -> dict[tuple[str, str], Json]:
    """Returns the properties of the mappings, by function and table."""
    aliases = {template.alias_of(name): module for module, name in template.functions().items()}
    by_function_and_table = {}
    for mapping in template.of_type("AWS::Lambda::EventSourceMapping").values():
        table, attribute = mapping["Properties"]["EventSourceArn"]["Fn::GetAtt"]
        function = aliases[mapping["Properties"]["FunctionName"]["Ref"]]
        assert attribute == "StreamArn"
        assert (function, table) not in by_function_and_table
        by_function_and_table[function, table] = mapping["Properties"]
    return by_function_and_table


def mappings(template: Template) -> dict[tuple[str, str], StreamMapping]:
    """Returns the mappings, by function and table. If the pump cannot emulate a mapping, raises LocalError."""
    return {key: read_mapping(_pump_document(*key, mapping)) for key, mapping in properties(template).items()}


def _pump_document(function: str, table: str, mapping: Json) -> Json:
    """Returns a mapping as the description of a local stack has it."""
    document = {_NAMES.get(name, name): value for name, value in mapping.items() if name not in _WITHOUT_NAME}
    for name in ("EventSourceArn", "FunctionName"):
        del document[name]
    patterns = [json.loads(entry["Pattern"]) for entry in document.pop("FilterCriteria", {"Filters": []})["Filters"]]
    reports = document.pop("FunctionResponseTypes", None) == ["ReportBatchItemFailures"]
    return {
        "name": f"{function} of {table}", "function": function, "table": table, "filters": patterns,
        "reports_failures": reports, **document,
    }  # fmt: skip
