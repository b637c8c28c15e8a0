"""Memory, time, environment, snapshots and concurrency of functions. Their roles allow exactly what they need."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from bench import cost
from tally.api.operation import STRANGERS_SUFFIX
from tally.cdk.concurrency import concurrency_limits
from tally.cdk.names import camel
from tally.cdk.options import Options
from tally.cli.deploy import CONCURRENCY_MIN, UNRESERVED
from tests.infra.conftest import BEHIND_CDN, DECLARED
from tests.infra.template import Json, Template, as_list

# A function has the name of its module in tally/operations.
WITH_ROUTES = sorted(DECLARED.routes_by_function)
FOR_OTHER_LAMBDAS = [name for name in WITH_ROUTES if not name.endswith(STRANGERS_SUFFIX)]
SCHEDULED = {schedule.function: schedule for schedule in DECLARED.schedules}
CONSUMERS = {reader.function: reader for reader in DECLARED.readers}
MODULES = sorted([*WITH_ROUTES, *SCHEDULED, *CONSUMERS])
WITH_WRITES = sorted(
    name for name, routes in DECLARED.routes_by_function.items() if any(route.operation.writes for route in routes)
)
SENDING = ("bookkeeper", "sweep")  # the functions that send threshold events
STATUS = "drift"  # the function of GET /status


def on_tables(statement: Json) -> bool:
    """Whether all resources of a statement are tables. test_iam.py checks what roles may do with tables."""
    arns = [{"Fn::GetAtt": [table, "Arn"]} for table in ("CountsTable", "ReceiptsTable", "LedgerTable")]
    return all(resource in arns for resource in as_list(statement["Resource"]))


@pytest.mark.parametrize("module", MODULES)
def test_a_role_allows_only_the_resources_of_its_function_beside_the_tables(dev: Template, module: str) -> None:
    function = dev.functions()[module]
    log_group = dev.resources[function]["Properties"]["LoggingConfig"]["LogGroup"]["Ref"]
    expected: list[tuple[list[str], list[Any]]] = [
        (["logs:CreateLogStream", "logs:PutLogEvents"], [{"Fn::GetAtt": [log_group, "Arn"]}]),
    ]
    if module in WITH_WRITES:
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
        objects = {"Fn::Join": ["", [{"Fn::GetAtt": ["DeadLetterBucket", "Arn"]}, f"/{module}/*"]]}
        expected += [(["dynamodb:ListStreams"], ["*"]), (["s3:PutObject"], [objects])]
    if module in SENDING:
        expected += [(["events:PutEvents"], [dev.outputs["EventBusArn"]["Value"]])]
    statements = [statement for statement in dev.statements(function) if not on_tables(statement)]
    assert {statement["Effect"] for statement in statements} == {"Allow"}
    from_tally = {"StringEquals": {"events:source": "tally"}}
    for statement in statements:
        condition = from_tally if statement["Action"] == "events:PutEvents" else None
        assert statement.get("Condition") == condition
    allowed = [
        (sorted(as_list(statement["Action"])), sorted(as_list(statement["Resource"]), key=str))
        for statement in statements
    ]
    assert sorted(allowed, key=str) == sorted(((actions, sorted(arns, key=str)) for actions, arns in expected), key=str)


def test_each_function_has_its_own_role_and_log_group(dev: Template) -> None:
    functions = [dev.resources[name]["Properties"] for name in dev.functions().values()]
    roles = {properties["Role"]["Fn::GetAtt"][0] for properties in functions}
    logs = {properties["LoggingConfig"]["LogGroup"]["Ref"] for properties in functions}
    assert len(roles) == len(logs) == len(MODULES)
    by_lambda = [{"Action": "sts:AssumeRole", "Effect": "Allow", "Principal": {"Service": "lambda.amazonaws.com"}}]
    for role in roles:
        assert dev.resources[role]["Properties"]["AssumeRolePolicyDocument"]["Statement"] == by_lambda


def test_each_function_has_its_timeout_and_its_memory(dev: Template, prod: Template) -> None:
    """A sweep ends before the next sweep begins, a minute later. Lambda gives 1769 MB a whole CPU."""
    for template in (dev, prod):
        for module, name in template.functions().items():
            properties = template.resources[name]["Properties"]
            assert properties["Timeout"] == (60 if module in CONSUMERS else 55 if module in SCHEDULED else 15), module
            memory_mb = 1769 if module in SCHEDULED and template is prod else 512
            assert properties["MemorySize"] == memory_mb, module


# A busy function uses tables, and one of its routes allows 500 requests a second. In prod it starts from snapshots.
BUSY_FUNCTIONS = {
    "increments", "increments_open", "reads", "children", "children_open", "holds", "posts", "receipts", "visits",
}  # fmt: skip
WARNINGS_ONLY = {"POWERTOOLS_LOG_LEVEL": "WARNING"}
# For each stack: the functions from snapshots, the traced functions, and the log settings of functions with routes.
SNAPSHOTS_TRACES_LOGS: list[tuple[str, set[str], set[str], dict[str, str]]] = [
    ("dev", set(), set(), {"POWERTOOLS_LOG_LEVEL": "INFO"}),
    ("prod", BUSY_FUNCTIONS, set(), WARNINGS_ONLY | {"POWERTOOLS_LOGGER_SAMPLE_RATE": "0.05"}),
    ("behind_cdn", set(), set(), WARNINGS_ONLY | {"POWERTOOLS_LOGGER_SAMPLE_RATE": "0.05"}),
    ("lavish", BUSY_FUNCTIONS, set(MODULES), WARNINGS_ONLY),
]


@pytest.mark.parametrize(
    ("context", "snapshots", "traced", "logs"), SNAPSHOTS_TRACES_LOGS, ids=[row[0] for row in SNAPSHOTS_TRACES_LOGS]
)
def test_snapshots_traces_and_logs_follow_the_options(
    request: pytest.FixtureRequest, context: str, snapshots: set[str], traced: set[str], logs: dict[str, str]
) -> None:
    """Not every function has a snapshot, because AWS bills about $2 a month for each."""
    template: Template = request.getfixturevalue(context)
    for module, name in template.functions().items():
        properties = template.resources[name]["Properties"]
        from_snapshots = properties.get("SnapStart") == {"ApplyOn": "PublishedVersions"}
        assert from_snapshots is (module in snapshots), module
        assert properties.get("TracingConfig") == ({"Mode": "Active"} if module in traced else None), module
        variables = properties["Environment"]["Variables"]
        log_settings = {key: value for key, value in variables.items() if key.startswith("POWERTOOLS_LOG")}
        assert log_settings == (logs if module in WITH_ROUTES else {"POWERTOOLS_LOG_LEVEL": "INFO"}), module
    assert ("xray:" in template.text) is bool(traced)


def test_lambda_itself_logs_only_failures(dev: Template, prod: Template) -> None:
    """Lambda's own lines for a success (START, END, REPORT) would cost more than the function's line."""
    for template in (dev, prod):
        for module, name in template.functions().items():
            logging = template.resources[name]["Properties"]["LoggingConfig"]
            # Without ApplicationLogLevel, Lambda keeps every line of the function.
            assert logging.keys() == {"LogGroup", "LogFormat", "SystemLogLevel"}, module
            assert (logging["LogFormat"], logging["SystemLogLevel"]) == ("JSON", "WARN"), module


@pytest.mark.parametrize("module", MODULES)
def test_an_alias_points_to_a_version_of_its_function_and_other_lambdas_find_the_alias_in_an_output(
    dev: Template, module: str
) -> None:
    function = dev.functions()[module]
    alias = dev.resources[dev.alias_of(function)]["Properties"]
    version, attribute = alias["FunctionVersion"]["Fn::GetAtt"]
    assert (alias["Name"], attribute) == ("live", "Version")
    assert dev.resources[version]["Type"] == "AWS::Lambda::Version"
    assert dev.resources[version]["Properties"]["FunctionName"] == {"Ref": function}
    output = dev.outputs.get(f"{camel(module)}FunctionArn")
    assert (output and output["Value"]) == ({"Ref": dev.alias_of(function)} if module in FOR_OTHER_LAMBDAS else None)


@pytest.mark.parametrize("module", MODULES)
def test_a_function_has_the_environment_that_it_needs_and_no_other_variables(dev: Template, module: str) -> None:
    variables = dict(dev.resources[dev.functions()[module]]["Properties"]["Environment"]["Variables"])
    del variables["TALLY_VERSION"]  # test_canary.py checks this variable
    if module in CONSUMERS:
        assert variables.pop("TALLY_DEAD_LETTER_BUCKET") == {"Ref": "DeadLetterBucket"}
    if module in SENDING:
        assert variables.pop("TALLY_EVENT_BUS") == dev.outputs["EventBusArn"]["Value"]
    if module == STATUS:
        assert variables.pop("TALLY_ALARM_TOPIC") == dev.outputs["AlarmTopicArn"]["Value"]
    if module == "sweep":
        assert variables.pop("TALLY_COUNTS_STREAM") == {"Fn::GetAtt": ["CountsTable", "StreamArn"]}
        assert variables.pop("TALLY_RECEIPTS_STREAM") == {"Fn::GetAtt": ["ReceiptsTable", "StreamArn"]}
    if module == "console":
        assert "sign_in" in str(variables.pop("TALLY_CONSOLE"))
    variables.pop("TALLY_CONSOLE_CLIENT", None)  # test_api.py checks this variable
    assert variables == {
        "TALLY_COUNTS_TABLE": {"Ref": "CountsTable"},
        "TALLY_RECEIPTS_TABLE": {"Ref": "ReceiptsTable"},
        "TALLY_LEDGER_TABLE": {"Ref": "LedgerTable"},
        "POWERTOOLS_SERVICE_NAME": "Tally-dev",
        "POWERTOOLS_METRICS_NAMESPACE": "Tally",
        "POWERTOOLS_LOG_LEVEL": "INFO",
    }


def test_only_functions_that_check_page_hosts_have_the_variable(behind_cdn: Template) -> None:
    """A long list of hosts takes most of the 4 KB that Lambda allows for the environment of a function."""
    hosts_by_module = {
        module: behind_cdn.resources[id_]["Properties"]["Environment"]["Variables"].get("TALLY_PAGE_HOSTS")
        for module, id_ in behind_cdn.functions().items()
    }
    assert {module for module, hosts in hosts_by_module.items() if hosts} == {"reads", "visits"}
    assert hosts_by_module["visits"] == "example.com,blog.example.org"


def managed_policy(template: Template, output: str) -> Json:
    """Returns the managed policy that an output names."""
    properties: Json = template.resources[template.outputs[output]["Value"]["Ref"]]["Properties"]
    return properties


def test_the_policy_for_operators_lets_the_command_read_repair_and_redrive(dev: Template) -> None:
    """test_iam.py checks which keys of the tables the policy allows."""
    policy = managed_policy(dev, "OperatorPolicyArn")
    statements = policy["PolicyDocument"]["Statement"]
    bucket = {"Fn::GetAtt": ["DeadLetterBucket", "Arn"]}
    unconditional = {str(entry["Action"]): entry["Resource"] for entry in statements if "Condition" not in entry}
    mapping_actions = ["lambda:GetEventSourceMapping", "lambda:UpdateEventSourceMapping"]
    [on_mappings] = [entry for entry in statements if entry["Action"] == mapping_actions]
    consumers = [dev.functions()[module] for module in CONSUMERS]
    arns = [arn for name in consumers for arn in ({"Ref": dev.alias_of(name)}, {"Fn::GetAtt": [name, "Arn"]})]
    # FunctionArn: the mapping's function, or the function that a request sets. An operator may set no other function.
    [function_arns] = on_mappings["Condition"]["StringEqualsIfExists"].values()
    assert sorted(function_arns, key=str) == sorted(arns, key=str)
    assert sorted(arn["Fn::GetAtt"] for arn in on_mappings["Resource"]) == sorted(
        [name, "EventSourceMappingArn"] for name in dev.of_type("AWS::Lambda::EventSourceMapping")
    )
    parts_of_stack_arn = unconditional.pop("cloudformation:DescribeStacks")["Fn::Join"][1]
    assert parts_of_stack_arn[-1] == ":stack/Tally-dev/*"
    assert unconditional == {
        "dynamodb:Scan": [{"Fn::GetAtt": ["CountsTable", "Arn"]}, {"Fn::GetAtt": ["ReceiptsTable", "Arn"]}],
        str(["s3:DeleteObject", "s3:GetObject"]): {"Fn::Join": ["", [bucket, "/*"]]},
        "s3:ListBucket": bucket,
        str(["sqs:DeleteMessage", "sqs:GetQueueAttributes", "sqs:ReceiveMessage"]): {
            "Fn::GetAtt": [dev.only_name("AWS::SQS::Queue"), "Arn"]
        },
        str(["cloudwatch:DescribeAlarms", "lambda:ListEventSourceMappings"]): "*",  # IAM has no narrower resource
        "lambda:InvokeFunction": {"Ref": dev.alias_of(dev.functions()["sweep"])},
        "sns:GetTopicAttributes": dev.outputs["AlarmTopicArn"]["Value"],
    }


def test_the_policy_for_other_lambdas_lets_them_invoke_the_aliases_only(dev: Template) -> None:
    policy = managed_policy(dev, "InvokePolicyArn")
    [statement] = policy["PolicyDocument"]["Statement"]
    assert statement["Action"] == "lambda:InvokeFunction"
    aliases = [{"Ref": dev.alias_of(dev.functions()[module])} for module in FOR_OTHER_LAMBDAS]
    assert sorted(statement["Resource"], key=str) == sorted(aliases, key=str)
    assert "Condition" not in statement
    assert not {"Roles", "Users", "Groups"} & policy.keys()


def test_a_schedule_invokes_the_alias_of_its_function(dev: Template) -> None:
    targets = [rule["Properties"]["Targets"][0]["Arn"] for rule in dev.of_type("AWS::Events::Rule").values()]
    assert targets == [{"Ref": dev.alias_of(dev.functions()[module])} for module in SCHEDULED]


def invoke_configs(template: Template, modules: Iterable[str]) -> list[Json]:
    """Returns how these functions handle asynchronous events."""
    names = [{"Ref": template.functions()[module]} for module in modules]
    configs = template.of_type("AWS::Lambda::EventInvokeConfig").values()
    return [config for config in configs if config["Properties"]["FunctionName"] in names]


def test_lambda_does_not_repeat_or_delay_a_sweep(dev: Template) -> None:
    """A retry would run beside the next sweep. The event of a failed sweep is dropped, not queued."""
    [config] = invoke_configs(dev, SCHEDULED)
    assert config["Properties"] == {
        "FunctionName": {"Ref": dev.functions()["sweep"]},
        # The alias's name is the eighth part of its ARN.
        "Qualifier": {"Fn::Select": [7, {"Fn::Split": [":", {"Ref": dev.alias_of(dev.functions()["sweep"])}]}]},
        "MaximumRetryAttempts": 0,
        "MaximumEventAgeInSeconds": 60,
    }
    assert len(dev.of_type("AWS::Lambda::EventInvokeConfig")) == len(WITH_WRITES) + 1


ACCOUNT_CONCURRENCY = 1000  # Lambda's default quota of an account in a region
# The reserved concurrency of prod's functions for strangers.
CEILINGS = {  # the code takes the requests a second of the busiest route times 0.05 s, and at least 10
    "increments_open": 25, "reads": 50, "children_open": 50, "posts": 50, "visits": 50, "receipts": 50, "series": 10,
    "console": 10, "health": 10,
}  # fmt: skip


def reserved_concurrency(template: Template) -> dict[str, int]:
    """Returns the reserved concurrency, by function: how many calls of the function Lambda runs at once, at most."""
    functions = {module: template.resources[name]["Properties"] for module, name in template.functions().items()}
    key = "ReservedConcurrentExecutions"
    return {module: properties[key] for module, properties in functions.items() if key in properties}


def test_in_prod_only_functions_for_strangers_have_a_ceiling_and_enough_concurrency_stays_unreserved(
    dev: Template, prod: Template
) -> None:
    """So strangers never delay the consumers, the sweep, or the functions that only a team calls."""
    assert reserved_concurrency(prod) == CEILINGS
    assert set(CEILINGS) == {
        module
        for module, routes in DECLARED.routes_by_function.items()
        if any(not route.needs_caller for route in routes)
    }
    unreserved = ACCOUNT_CONCURRENCY - sum(CEILINGS.values())
    assert unreserved > UNRESERVED + CONCURRENCY_MIN, "else AWS refuses the ceilings, or the consumers wait"
    assert 2 * sum(CEILINGS.values()) + UNRESERVED <= ACCOUNT_CONCURRENCY, "two such stacks fit into an account"
    for module, ceiling in CEILINGS.items():
        busiest_per_s = max(route.throttle.rate_per_s for route in DECLARED.routes_by_function[module])
        assert ceiling > busiest_per_s * cost.CHANGE_MS / 1000, "a function must be able to serve its whole throttle"
    assert reserved_concurrency(dev) == {}, (
        "a new account runs ten functions at once, and AWS would refuse a reservation"
    )


def test_the_options_reserve_concurrency_for_background_functions_and_a_share_for_strangers(
    behind_cdn: Template,
) -> None:
    for_consumers, for_strangers = int(BEHIND_CDN["reservedConcurrency"]), int(BEHIND_CDN["strangersConcurrency"])
    ceilings = sum(CEILINGS.values())
    shares = {module: for_strangers * ceiling // ceilings for module, ceiling in CEILINGS.items()}
    assert reserved_concurrency(behind_cdn) == {"sweep": 1, **dict.fromkeys(CONSUMERS, for_consumers), **shares}
    assert for_strangers - len(shares) < sum(shares.values()) < for_strangers, "each share is rounded down"


@pytest.mark.parametrize(
    ("context", "total"),
    [
        ({"stage": "prod"}, 305),  # the sum of CEILINGS
        ({"stage": "prod", "throttle": "0.1"}, 90),  # 10 for each of 9 functions
        ({"stage": "prod", "strangersConcurrency": "0"}, 0),
        ({"stage": "prod", "strangersConcurrency": "3"}, 9),  # each has 1, because a function with 0 answers nobody
        ({}, 0),
        ({"stage": "prod", "strangersConcurrency": "610"}, 610),
    ],
)
def test_the_ceilings_follow_the_throttles_or_the_option(context: dict[str, str], total: int) -> None:
    assert sum(concurrency_limits(DECLARED.routes_by_function, Options.from_context(context)).values()) == total


def test_an_asynchronous_event_that_lambda_gives_up_goes_to_the_queue_of_failed_events(dev: Template) -> None:
    """Only functions with writes have this setting. If a read fails, its caller sees the failure.

    The setting names the alias by a text, not by a reference, so it needs DependsOn.
    """
    queue = dev.only_name("AWS::SQS::Queue")
    functions, dependencies = dev.functions(), {}
    for config in invoke_configs(dev, WITH_ROUTES):
        properties = config["Properties"]
        assert properties["Qualifier"] == "live"
        assert properties["DestinationConfig"] == {"OnFailure": {"Destination": {"Fn::GetAtt": [queue, "Arn"]}}}
        dependencies[properties["FunctionName"]["Ref"]] = config["DependsOn"]
    assert set(dependencies) == {functions[module] for module in WITH_WRITES}
    assert {"increments", "increments_open", "changes", "children", "visits", "holds", "posts"} <= set(WITH_WRITES)
    for function, resources in dependencies.items():
        assert dev.alias_of(function) in resources
    assert dev.outputs["FailedEventsQueueUrl"]["Value"] == {"Ref": queue}
