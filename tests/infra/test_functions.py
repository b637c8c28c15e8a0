"""The functions: how they run, and that their roles allow exactly what their operations need."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from bench import cost
from tally.api.operation import OPEN_SUFFIX
from tally.cdk.concurrency import concurrency_limits
from tally.cdk.names import camel
from tally.cdk.options import Options
from tally.cli.deploy import CONCURRENCY_MIN, UNRESERVED
from tests.infra.conftest import DECLARED
from tests.infra.template import Json, Template, as_list

CALLED = sorted(DECLARED.routes_by_function)
INVOKED = [name for name in CALLED if not name.endswith(OPEN_SUFFIX)]
SCHEDULED = {schedule.function: schedule for schedule in DECLARED.schedules}
CONSUMERS = {reader.function: reader for reader in DECLARED.readers}
MODULES = sorted([*CALLED, *SCHEDULED, *CONSUMERS])
ASYNCHRONOUS = sorted(
    name for name, routes in DECLARED.routes_by_function.items() if any(route.operation.writes for route in routes)
)
SENDING = ("bookkeeper", "sweep")
STATUS = "drift"  # the function of GET /status


def on_tables(statement: Json) -> bool:
    """Whether any resource is a table. test_iam.py decides what roles may do there."""
    arns = [{"Fn::GetAtt": [table, "Arn"]} for table in ("CountsTable", "ReceiptsTable", "LedgerTable")]
    return any(resource in arns for resource in as_list(statement["Resource"]))


@pytest.mark.parametrize("module", MODULES)
def test_beside_tables_a_role_allows_its_own_log_and_who_reads_streams_those(dev: Template, module: str) -> None:
    function = dev.functions()[module]
    log_group = dev.resources[function]["Properties"]["LoggingConfig"]["LogGroup"]["Ref"]
    on_all: list[str] = []
    expected: list[tuple[list[str], list[Any]]] = [
        (["logs:CreateLogStream", "logs:PutLogEvents"], [{"Fn::GetAtt": [log_group, "Arn"]}]),
    ]
    if module in ASYNCHRONOUS:
        expected += [(["sqs:SendMessage"], [{"Fn::GetAtt": [dev.only_name("AWS::SQS::Queue"), "Arn"]}])]
    if module == STATUS:
        parts = [":cloudwatch:", {"Ref": "AWS::Region"}, ":", {"Ref": "AWS::AccountId"}, ":alarm:Tally-dev-*"]
        expected += [
            (["cloudwatch:DescribeAlarms"], [{"Fn::Join": ["", ["arn:", {"Ref": "AWS::Partition"}, *parts]]}]),
            (["sns:GetTopicAttributes"], [dev.outputs["AlarmTopicArn"]["Value"]]),
        ]
    if module in (*CONSUMERS, "sweep"):
        streams = [{"Fn::GetAtt": [table, "StreamArn"]} for table in ("CountsTable", "ReceiptsTable")]
        expected += [(["dynamodb:DescribeStream", "dynamodb:GetRecords", "dynamodb:GetShardIterator"], streams)]
    if module in CONSUMERS:
        on_all.insert(0, "dynamodb:ListStreams")
        objects = {"Fn::Join": ["", [{"Fn::GetAtt": ["DeadLetterBucket", "Arn"]}, f"/{module}/*"]]}
        expected += [(["s3:PutObject"], [objects])]
    if module in SENDING:
        expected += [(["events:PutEvents"], [dev.outputs["EventBusArn"]["Value"]])]
    found = [statement for statement in dev.statements(function) if not on_tables(statement)]
    of_tally = {"StringEquals": {"events:source": "tally"}}
    assert all(one.pop("Condition") == of_tally for one in found if one["Action"] == "events:PutEvents")
    assert {(statement["Effect"], "Condition" in statement) for statement in found} == {("Allow", False)}
    allowed = [
        (sorted(as_list(statement["Action"])), sorted(as_list(statement["Resource"]), key=str)) for statement in found
    ]
    expected += [(on_all, ["*"])] if on_all else []
    assert sorted(allowed, key=str) == sorted(((does, sorted(to, key=str)) for does, to in expected), key=str)


def test_each_function_has_a_role_and_a_log_of_its_own(dev: Template) -> None:
    found = [dev.resources[name]["Properties"] for name in dev.functions().values()]
    roles = {properties["Role"]["Fn::GetAtt"][0] for properties in found}
    logs = {properties["LoggingConfig"]["LogGroup"]["Ref"] for properties in found}
    assert len(roles) == len(logs) == len(MODULES)
    by_lambda = [{"Action": "sts:AssumeRole", "Effect": "Allow", "Principal": {"Service": "lambda.amazonaws.com"}}]
    for role in roles:
        assert dev.resources[role]["Properties"]["AssumeRolePolicyDocument"]["Statement"] == by_lambda


def test_how_long_a_function_runs_and_with_how_much(dev: Template, prod: Template) -> None:
    """A sweep ends before the next one; 1769 MB is a whole CPU."""
    for template in (dev, prod):
        for module, name in template.functions().items():
            properties = template.resources[name]["Properties"]
            assert properties["Timeout"] == (60 if module in CONSUMERS else 55 if module in SCHEDULED else 15), module
            most = 1769 if module in SCHEDULED and template is prod else 512
            assert properties["MemorySize"] == most, module


# Operators and programs call the others, seldom. The console's files are kept by browsers, and no page waits for them.
FROM_SNAPSHOTS = {
    "increments", "increments_open", "reads", "children", "children_open", "holds", "posts", "receipts", "visits",
}  # fmt: skip
QUIET = {"POWERTOOLS_LOG_LEVEL": "WARNING"}
# Which functions start from snapshots, which X-Ray traces, and how those that answer log.
BY_OPTIONS: list[tuple[str, set[str], set[str], dict[str, str]]] = [
    ("dev", set(), set(), {"POWERTOOLS_LOG_LEVEL": "INFO"}),
    ("prod", FROM_SNAPSHOTS, set(), QUIET | {"POWERTOOLS_LOGGER_SAMPLE_RATE": "0.05"}),
    ("behind_cdn", set(), set(), QUIET | {"POWERTOOLS_LOGGER_SAMPLE_RATE": "0.05"}),
    ("lavish", FROM_SNAPSHOTS, set(MODULES), QUIET),
]


@pytest.mark.parametrize(("context", "snapshots", "traced", "logs"), BY_OPTIONS, ids=[given[0] for given in BY_OPTIONS])
def test_snapshots_traces_and_logs_are_as_the_options_say(
    request: pytest.FixtureRequest, context: str, snapshots: set[str], traced: set[str], logs: dict[str, str]
) -> None:
    """AWS bills a snapshot for as long as its version exists: about $2 a month each."""
    template: Template = request.getfixturevalue(context)
    for module, name in template.functions().items():
        properties = template.resources[name]["Properties"]
        from_snapshots = properties.get("SnapStart") == {"ApplyOn": "PublishedVersions"}
        assert from_snapshots is (module in snapshots), module
        assert properties.get("TracingConfig") == ({"Mode": "Active"} if module in traced else None), module
        variables = properties["Environment"]["Variables"]
        found = {key: value for key, value in variables.items() if key.startswith("POWERTOOLS_LOG")}
        assert found == (logs if module in CALLED else {"POWERTOOLS_LOG_LEVEL": "INFO"}), module
    assert ("xray:" in template.text) is bool(traced)


def test_lambda_itself_logs_failures_alone(dev: Template, prod: Template) -> None:
    """Its lines of a success (START, END, REPORT) are longer than the function's own, and AWS bills bytes."""
    for template in (dev, prod):
        for module, name in template.functions().items():
            logging = template.resources[name]["Properties"]["LoggingConfig"]
            # Without ApplicationLogLevel: what the function writes is all kept.
            assert logging.keys() == {"LogGroup", "LogFormat", "SystemLogLevel"}, module
            assert (logging["LogFormat"], logging["SystemLogLevel"]) == ("JSON", "WARN"), module


@pytest.mark.parametrize("module", MODULES)
def test_a_function_is_called_at_a_published_version_behind_its_alias(dev: Template, module: str) -> None:
    function = dev.functions()[module]
    alias = dev.resources[dev.alias_of(function)]["Properties"]
    version, attribute = alias["FunctionVersion"]["Fn::GetAtt"]
    assert (alias["Name"], attribute) == ("live", "Version")
    assert dev.resources[version]["Type"] == "AWS::Lambda::Version"
    assert dev.resources[version]["Properties"]["FunctionName"] == {"Ref": function}
    output = dev.outputs.get(f"{camel(module)}FunctionArn")
    assert output is None if module not in INVOKED else output and output["Value"] == {"Ref": dev.alias_of(function)}


@pytest.mark.parametrize("module", MODULES)
def test_environment(dev: Template, module: str) -> None:
    variables = dict(dev.resources[dev.functions()[module]]["Properties"]["Environment"]["Variables"])
    del variables["TALLY_VERSION"]
    if module in CONSUMERS:  # and nobody else
        assert variables.pop("TALLY_DEAD_LETTER_BUCKET") == {"Ref": "DeadLetterBucket"}
    if module in SENDING:  # and nobody else
        assert variables.pop("TALLY_EVENT_BUS") == dev.outputs["EventBusArn"]["Value"]
    if module == STATUS:  # and nobody else
        assert variables.pop("TALLY_ALARM_TOPIC") == dev.outputs["AlarmTopicArn"]["Value"]
    if module == "sweep":  # and nobody else
        assert variables.pop("TALLY_COUNTS_STREAM") == {"Fn::GetAtt": ["CountsTable", "StreamArn"]}
        assert variables.pop("TALLY_RECEIPTS_STREAM") == {"Fn::GetAtt": ["ReceiptsTable", "StreamArn"]}
    if module == "console":  # and nobody else
        assert "sign_in" in str(variables.pop("TALLY_CONSOLE"))
    variables.pop("TALLY_CONSOLE_CLIENT", None)  # tests/infra/test_api.py looks at it
    assert variables == {
        "TALLY_COUNTS_TABLE": {"Ref": "CountsTable"},
        "TALLY_RECEIPTS_TABLE": {"Ref": "ReceiptsTable"},
        "TALLY_LEDGER_TABLE": {"Ref": "LedgerTable"},
        "POWERTOOLS_SERVICE_NAME": "Tally-dev",
        "POWERTOOLS_METRICS_NAMESPACE": "Tally",
        "POWERTOOLS_LOG_LEVEL": "INFO",
    }


def test_the_hosts_of_pages_are_told_to_those_that_look_at_them(behind_cdn: Template) -> None:
    """a6: 120 of them were more than Lambda takes, in every function."""
    found = {
        module: behind_cdn.resources[id_]["Properties"]["Environment"]["Variables"].get("TALLY_PAGE_HOSTS")
        for module, id_ in behind_cdn.functions().items()
    }
    assert {module for module, hosts in found.items() if hosts} == {"reads", "visits"}
    assert found["visits"] == "example.com,blog.example.org"


def managed(template: Template, output: str) -> Json:
    """The managed policy that an output names."""
    properties: Json = template.resources[template.outputs[output]["Value"]["Ref"]]["Properties"]
    return properties


def test_the_policy_for_the_command_lets_it_read_repair_and_redrive(dev: Template) -> None:
    """With what test_iam.py decides: the keys of its tables."""
    policy = managed(dev, "OperatorPolicyArn")
    statements = policy["PolicyDocument"]["Statement"]
    bucket = {"Fn::GetAtt": ["DeadLetterBucket", "Arn"]}
    others = {str(found["Action"]): found["Resource"] for found in statements if "Condition" not in found}
    switch = ["lambda:GetEventSourceMapping", "lambda:UpdateEventSourceMapping"]
    [(mappings, only)] = [(one["Resource"], one["Condition"]) for one in statements if one["Action"] == switch]
    consumers = [dev.functions()[module] for module in CONSUMERS]
    own = [arn for one in consumers for arn in ({"Ref": dev.alias_of(one)}, {"Fn::GetAtt": [one, "Arn"]})]
    [(operator, found)] = only.items()
    assert operator == "StringEqualsIfExists", "turned to another function, a mapping would leave its consumer"
    assert sorted(found["lambda:FunctionArn"], key=str) == sorted(own, key=str)
    assert sorted(arn["Fn::GetAtt"] for arn in mappings) == sorted(
        [name, "EventSourceMappingArn"] for name in dev.of_type("AWS::Lambda::EventSourceMapping")
    )
    stack = others.pop("cloudformation:DescribeStacks")["Fn::Join"][1]
    assert stack[-1] == ":stack/Tally-dev/*"
    assert others == {
        "dynamodb:Scan": [{"Fn::GetAtt": ["CountsTable", "Arn"]}, {"Fn::GetAtt": ["ReceiptsTable", "Arn"]}],
        str(["s3:DeleteObject", "s3:GetObject"]): {"Fn::Join": ["", [bucket, "/*"]]},
        "s3:ListBucket": bucket,
        str(["sqs:DeleteMessage", "sqs:GetQueueAttributes", "sqs:ReceiveMessage"]): {
            "Fn::GetAtt": [dev.only_name("AWS::SQS::Queue"), "Arn"]
        },
        str(["cloudwatch:DescribeAlarms", "lambda:ListEventSourceMappings"]): "*",  # neither can name what it shows
        "lambda:InvokeFunction": {"Ref": dev.alias_of(dev.functions()["sweep"])},
        "sns:GetTopicAttributes": dev.outputs["AlarmTopicArn"]["Value"],
    }


def test_the_policy_for_other_lambdas_lets_them_invoke_the_aliases_only(dev: Template) -> None:
    policy = managed(dev, "InvokePolicyArn")
    [statement] = policy["PolicyDocument"]["Statement"]
    assert statement["Action"] == "lambda:InvokeFunction"
    aliases = [{"Ref": dev.alias_of(dev.functions()[module])} for module in INVOKED]
    assert sorted(statement["Resource"], key=str) == sorted(aliases, key=str)
    assert "Condition" not in statement
    assert not {"Roles", "Users", "Groups"} & policy.keys()


def test_a_schedule_runs_an_alias(dev: Template) -> None:
    found = [rule["Properties"]["Targets"][0]["Arn"] for rule in dev.of_type("AWS::Events::Rule").values()]
    assert found == [{"Ref": dev.alias_of(dev.functions()[module])} for module in SCHEDULED]


def invoke_configs(template: Template, modules: Iterable[str]) -> list[Json]:
    """How these functions take asynchronous events."""
    names = [{"Ref": template.functions()[module]} for module in modules]
    found = template.of_type("AWS::Lambda::EventInvokeConfig").values()
    return [config for config in found if config["Properties"]["FunctionName"] in names]


def test_a_sweep_that_failed_or_waited_is_not_run_later(dev: Template) -> None:
    """Lambda's own retries would run a second sweep beside the next one. Nor is its event a failed event."""
    [config] = invoke_configs(dev, SCHEDULED)
    assert config["Properties"] == {
        "FunctionName": {"Ref": dev.functions()["sweep"]},
        "Qualifier": {"Fn::Select": [7, {"Fn::Split": [":", {"Ref": dev.alias_of(dev.functions()["sweep"])}]}]},
        "MaximumRetryAttempts": 0,
        "MaximumEventAgeInSeconds": 60,
    }
    assert len(dev.of_type("AWS::Lambda::EventInvokeConfig")) == len(ASYNCHRONOUS) + 1


CEILINGS = {  # written out a second time: 50 ms for each request of the busiest route, and at least ten
    "increments_open": 25, "reads": 50, "children_open": 50, "posts": 50, "visits": 50, "receipts": 50, "series": 10,
    "console": 10, "health": 10,
}  # fmt: skip


def at_once(template: Template) -> dict[str, int]:
    """The invocations at once that are reserved, by function: each has that many, and no more."""
    found = {module: template.resources[name]["Properties"] for module, name in template.functions().items()}
    reserved = "ReservedConcurrentExecutions"
    return {module: properties[reserved] for module, properties in found.items() if reserved in properties}


def test_what_serves_strangers_has_a_ceiling_in_prod_and_the_rest_of_the_account_is_free(
    dev: Template, prod: Template
) -> None:
    """Neither the consumers nor the sweep nor what only a team calls has to wait for strangers."""
    assert at_once(prod) == CEILINGS
    assert set(CEILINGS) == {
        module
        for module, routes in DECLARED.routes_by_function.items()
        if any(not route.needs_caller for route in routes)
    }
    assert 1000 - sum(CEILINGS.values()) > UNRESERVED + CONCURRENCY_MIN, "two such stacks fit into an account"
    assert 2 * sum(CEILINGS.values()) + UNRESERVED <= 1000
    for module, most in CEILINGS.items():
        busiest_per_s = max(route.throttle.rate_per_s for route in DECLARED.routes_by_function[module])
        assert most > busiest_per_s * cost.CHANGE_MS / 1000, "its throttle can be used up"
    assert at_once(dev) == {}, "AWS refuses a reservation that a new account, with ten, cannot give"


def test_concurrency_is_reserved_for_what_nobody_waits_for_and_strangers_share_what_they_are_given(
    behind_cdn: Template,
) -> None:
    found, of_strangers = at_once(behind_cdn), sum(CEILINGS.values())
    shares = {module: 203 * one // of_strangers for module, one in CEILINGS.items()}
    assert found == {"sweep": 1, **dict.fromkeys(CONSUMERS, 40), **shares}
    assert 203 - len(shares) < sum(shares.values()) <= 203


@pytest.mark.parametrize(
    ("context", "total"),
    [
        ({"stage": "prod"}, 305),
        ({"stage": "prod", "throttle": "0.1"}, 90),  # ten each
        ({"stage": "prod", "strangersConcurrency": "0"}, 0),
        ({"stage": "prod", "strangersConcurrency": "3"}, 9),  # each has one: with none it would answer nobody
        ({}, 0),
        ({"stage": "prod", "strangersConcurrency": "610"}, 610),
    ],
)
def test_the_ceilings_follow_the_throttles_or_the_option(context: dict[str, str], total: int) -> None:
    assert sum(concurrency_limits(DECLARED.routes_by_function, Options.from_context(context)).values()) == total


def test_an_asynchronous_event_that_is_given_up_is_kept(dev: Template) -> None:
    """For every function that writes, behind its alias. Callers of the others wait for the answer."""
    queue = dev.only_name("AWS::SQS::Queue")
    functions, found = dev.functions(), {}
    for config in invoke_configs(dev, CALLED):
        properties = config["Properties"]
        assert properties["Qualifier"] == "live"
        assert properties["DestinationConfig"] == {"OnFailure": {"Destination": {"Fn::GetAtt": [queue, "Arn"]}}}
        found[properties["FunctionName"]["Ref"]] = config["DependsOn"]
    assert set(found) == {functions[module] for module in ASYNCHRONOUS}
    assert {"increments", "increments_open", "changes", "children", "visits", "holds", "posts"} <= set(ASYNCHRONOUS)
    for function, waits_for in found.items():
        assert dev.alias_of(function) in waits_for
    assert dev.outputs["FailedEventsUrl"]["Value"] == {"Ref": queue}
