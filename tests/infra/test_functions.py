"""The functions: how they run, and that their roles allow exactly what their operations need."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import permissions
import pytest
from tally.operation import Need, Schedule, Table

import counters
import operations
from tests.infra.conftest import FRUGAL, LAVISH, Synthesize
from tests.infra.template import Grant, Json, Template, listed

CALLED = sorted(operations.functions())
SCHEDULED = {schedule.function: schedule for schedule in operations.SCHEDULES}
CONSUMERS = {consumer.function: consumer for consumer in operations.CONSUMERS}
MODULES = sorted([*CALLED, *SCHEDULED, *CONSUMERS])
ASYNCHRONOUS = sorted(
    module for module, found in operations.functions().items() if any(operation.writes for operation in found)
)
DECLARED = permissions.of_functions(counters.COUNTERS)
TABLES = {Table.COUNTS: "CountsTable", Table.RECEIPTS: "ReceiptsTable", Table.LEDGER: "LedgerTable"}


def on_tables(statement: Json) -> bool:
    """Whether any resource is a table. Another test looks at streams and `*`."""
    arns = [{"Fn::GetAtt": [table, "Arn"]} for table in TABLES.values()]
    return any(resource in arns for resource in listed(statement["Resource"]))


def grants(template: Template, function: str) -> list[Grant]:
    """The actions on tables that the role allows. Each condition must be exactly the one that limits the keys."""
    return granted(statement for statement in template.statements(function) if on_tables(statement))


def granted(statements: Iterable[Json]) -> list[Grant]:
    """The actions that statements on tables allow."""
    found = []
    for statement in statements:
        actions = listed(statement["Action"])
        condition = statement["Condition"]
        patterns = condition["ForAllValues:StringLike"]["dynamodb:LeadingKeys"]
        assert condition == {
            "ForAllValues:StringLike": {"dynamodb:LeadingKeys": patterns},
            "Null": {"dynamodb:LeadingKeys": "false"},
        }
        for resource in listed(statement["Resource"]):
            table, attribute = resource["Fn::GetAtt"]
            assert attribute == "Arn"
            found += [
                Grant(action.removeprefix("dynamodb:"), table, pattern) for action in actions for pattern in patterns
            ]
    return found


def wanted(need: Need) -> Grant:
    pattern = f"{need.prefix}*" if need.prefix.endswith("#") else need.prefix
    return Grant(need.action, TABLES[need.table], pattern)


def test_there_is_one_function_for_each_handler(dev: Template) -> None:
    assert sorted(dev.functions()) == MODULES


@pytest.mark.parametrize("module", MODULES)
def test_role_allows_exactly_what_the_operations_need(dev: Template, module: str) -> None:
    found = grants(dev, dev.functions()[module])
    assert sorted(found, key=str) == sorted(map(wanted, DECLARED[module]), key=str)


def test_roles_in_plain_words(dev: Template) -> None:
    """Two roles written out, beside the comparison with the declarations, which could be wrong themselves."""
    functions = dev.functions()
    assert set(grants(dev, functions["health"])) == {Grant("GetItem", "CountsTable", "HEALTH")}
    assert set(grants(dev, functions["plays"])) == {
        Grant("UpdateItem", "CountsTable", "VID#*"),
        Grant("Query", "CountsTable", "VID#*"),
        Grant("PutItem", "ReceiptsTable", "tally#*"),
    }
    assert set(grants(dev, functions["drift"])) == {
        Grant("GetItem", "LedgerTable", "CHECKPOINT#drift#*"),
        Grant("UpdateItem", "LedgerTable", "CHECKPOINT#drift#*"),
        Grant("PutItem", "LedgerTable", "SEGMENT#*"),
        Grant("GetItem", "LedgerTable", "JUDGE"),
        Grant("PutItem", "LedgerTable", "DEADLETTER"),
    }


@pytest.mark.parametrize("module", MODULES)
def test_beside_tables_a_role_allows_its_own_log_and_traces_and_who_reads_streams_those(
    dev: Template, module: str
) -> None:
    function = dev.functions()[module]
    log_group = dev.resources[function]["Properties"]["LoggingConfig"]["LogGroup"]["Ref"]
    # X-Ray has no resources.
    on_all = ["xray:PutTelemetryRecords", "xray:PutTraceSegments"] if module in CALLED else []
    expected: list[tuple[list[str], list[Any]]] = [
        (["logs:CreateLogStream", "logs:PutLogEvents"], [{"Fn::GetAtt": [log_group, "Arn"]}]),
    ]
    if module in ASYNCHRONOUS:
        expected += [(["sqs:SendMessage"], [{"Fn::GetAtt": [dev.only_name("AWS::SQS::Queue"), "Arn"]}])]
    if module == operations.GET_STATUS.function:
        parts = [":cloudwatch:", {"Ref": "AWS::Region"}, ":", {"Ref": "AWS::AccountId"}, ":alarm:Tally-dev-*"]
        expected += [(["cloudwatch:DescribeAlarms"], [{"Fn::Join": ["", ["arn:", {"Ref": "AWS::Partition"}, *parts]]}])]
    if module in (*CONSUMERS, "sweep"):
        streams = [{"Fn::GetAtt": [table, "StreamArn"]} for table in ("CountsTable", "ReceiptsTable")]
        expected += [(["dynamodb:DescribeStream", "dynamodb:GetRecords", "dynamodb:GetShardIterator"], streams)]
    if module in CONSUMERS:
        on_all.insert(0, "dynamodb:ListStreams")
        objects = {"Fn::Join": ["", [{"Fn::GetAtt": ["DeadLetterBucket", "Arn"]}, f"/{module}/*"]]}
        expected += [(["s3:PutObject"], [objects])]
    found = [statement for statement in dev.statements(function) if not on_tables(statement)]
    assert {(statement["Effect"], "Condition" in statement) for statement in found} == {("Allow", False)}
    allowed = [
        (sorted(listed(statement["Action"])), sorted(listed(statement["Resource"]), key=str)) for statement in found
    ]
    expected += [(on_all, ["*"])] if on_all else []
    assert sorted(allowed, key=str) == sorted(((does, sorted(to, key=str)) for does, to in expected), key=str)


def test_each_function_has_a_role_and_a_log_of_its_own(dev: Template) -> None:
    found = [dev.resources[name]["Properties"] for name in dev.functions().values()]
    roles = {properties["Role"]["Fn::GetAtt"][0] for properties in found}
    logs = {properties["LoggingConfig"]["LogGroup"]["Ref"] for properties in found}
    assert len(roles) == len(logs) == len(MODULES)
    for role in roles:
        [trust] = dev.resources[role]["Properties"]["AssumeRolePolicyDocument"]["Statement"]
        assert trust["Principal"] == {"Service": "lambda.amazonaws.com"}


def test_every_log_group_has_a_retention(dev: Template, prod: Template) -> None:
    for template in (dev, prod):
        groups = template.of_type("AWS::Logs::LogGroup")
        assert len(groups) == len(MODULES) + 1  # and the access log
        assert {group["Properties"]["RetentionInDays"] for group in groups.values()} == {30}


@pytest.mark.parametrize("module", MODULES)
def test_how_a_function_runs(dev: Template, prod: Template, module: str) -> None:
    properties = dev.resources[dev.functions()[module]]["Properties"]
    assert properties["Runtime"] == "python3.14"
    assert properties["Architectures"] == ["arm64"]
    assert properties["Timeout"] == (60 if module in CONSUMERS else 55 if module in SCHEDULED else 15)
    assert properties["MemorySize"] == 512
    in_prod = prod.resources[prod.functions()[module]]["Properties"]
    assert in_prod["MemorySize"] == (1769 if module in SCHEDULED else 512)  # 1769 MB is a whole CPU


# receipts, drifts and health have no busy route: operators and programs call them, seldom. The beacon's script is kept
# by browsers, and no page waits for it.
FROM_SNAPSHOTS = {"plays", "posts", "likes", "visits", "increments", "holds"}


def from_snapshots(template: Template) -> set[str]:
    """The functions with SnapStart."""
    return {
        module
        for module, name in template.functions().items()
        if template.resources[name]["Properties"].get("SnapStart") == {"ApplyOn": "PublishedVersions"}
    }


def test_only_busy_functions_of_other_stages_than_dev_start_from_snapshots(
    dev: Template, prod: Template, synthesize: Synthesize
) -> None:
    """AWS bills a snapshot for as long as its version exists: about $2 a month each."""
    assert from_snapshots(dev) == set()
    assert from_snapshots(prod) == FROM_SNAPSHOTS
    assert from_snapshots(synthesize(**FRUGAL)) == set()
    assert from_snapshots(synthesize(**LAVISH)) == FROM_SNAPSHOTS


def traced(template: Template) -> set[str]:
    """The functions that X-Ray traces."""
    modes = {
        module: template.resources[name]["Properties"].get("TracingConfig")
        for module, name in template.functions().items()
    }
    assert all(mode in (None, {"Mode": "Active"}) for mode in modes.values())
    return {module for module, mode in modes.items() if mode}


def test_what_a_caller_waits_for_is_traced_unless_all_or_nothing_is_asked_for(
    dev: Template, synthesize: Synthesize
) -> None:
    assert traced(dev) == set(CALLED)
    assert traced(synthesize(**LAVISH)) == set(MODULES)
    frugal = synthesize(**FRUGAL)
    assert traced(frugal) == set()
    assert "xray:" not in frugal.text


@pytest.mark.parametrize(
    ("options", "sampled"),
    [
        (FRUGAL, {"POWERTOOLS_LOG_LEVEL": "WARNING", "POWERTOOLS_LOGGER_SAMPLE_RATE": "0.05"}),
        (LAVISH, {"POWERTOOLS_LOG_LEVEL": "WARNING"}),
        ({}, {"POWERTOOLS_LOG_LEVEL": "INFO"}),
    ],
)
def test_only_functions_that_answer_sample_their_logs(
    synthesize: Synthesize, options: dict[str, str], sampled: dict[str, str]
) -> None:
    template = synthesize(**options)
    for module, name in template.functions().items():
        variables = template.resources[name]["Properties"]["Environment"]["Variables"]
        found = {key: value for key, value in variables.items() if key.startswith("POWERTOOLS_LOG")}
        assert found == (sampled if module in CALLED else {"POWERTOOLS_LOG_LEVEL": "INFO"})


@pytest.mark.parametrize("module", MODULES)
def test_a_function_is_called_at_a_published_version_behind_its_alias(dev: Template, module: str) -> None:
    function = dev.functions()[module]
    alias = dev.resources[dev.alias_of(function)]["Properties"]
    version, attribute = alias["FunctionVersion"]["Fn::GetAtt"]
    assert (alias["Name"], attribute) == ("live", "Version")
    assert dev.resources[version]["Type"] == "AWS::Lambda::Version"
    assert dev.resources[version]["Properties"]["FunctionName"] == {"Ref": function}
    if module in CALLED:
        assert dev.outputs[f"{module.capitalize()}FunctionArn"]["Value"] == {"Ref": dev.alias_of(function)}


def test_all_functions_share_one_asset_and_one_version_of_the_code(dev: Template) -> None:
    found = [dev.resources[name]["Properties"] for name in dev.functions().values()]
    assert len({str(properties["Code"]) for properties in found}) == 1
    versions = {properties["Environment"]["Variables"]["TALLY_VERSION"] for properties in found}
    assert len(versions) == 1
    assert len(versions.pop()) == 12


@pytest.mark.parametrize("module", MODULES)
def test_environment(dev: Template, module: str) -> None:
    variables = dict(dev.resources[dev.functions()[module]]["Properties"]["Environment"]["Variables"])
    del variables["TALLY_VERSION"]
    if module in CONSUMERS:  # and nobody else
        assert variables.pop("TALLY_DEAD_LETTER_BUCKET") == {"Ref": "DeadLetterBucket"}
    if module == operations.GET_STATUS.function:  # and nobody else
        assert variables.pop("TALLY_ALARM_TOPIC") == dev.outputs["AlarmTopicArn"]["Value"]
    if module == "sweep":  # and nobody else
        assert variables.pop("TALLY_COUNTS_STREAM") == {"Fn::GetAtt": ["CountsTable", "StreamArn"]}
        assert variables.pop("TALLY_RECEIPTS_STREAM") == {"Fn::GetAtt": ["ReceiptsTable", "StreamArn"]}
    if module == "beacon":  # and nobody else
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


def test_page_hosts_and_the_life_of_receipts_reach_the_functions(synthesize: Synthesize) -> None:
    template = synthesize(**FRUGAL)
    for function in template.functions().values():
        variables = template.resources[function]["Properties"]["Environment"]["Variables"]
        assert variables["TALLY_PAGE_HOSTS"] == "example.com,blog.example.org"
        assert variables["TALLY_RECEIPT_TTL_S"] == str(48 * 3600)
    assert template.outputs["PageHosts"]["Value"] == "example.com, blog.example.org"


def managed(template: Template, output: str) -> Json:
    """The managed policy that an output names."""
    properties: Json = template.resources[template.outputs[output]["Value"]["Ref"]]["Properties"]
    return properties


def test_the_policy_for_the_command_lets_it_read_repair_and_redrive(dev: Template) -> None:
    policy = managed(dev, "OperatorPolicyArn")
    assert not {"Roles", "Users", "Groups"} & policy.keys()
    statements = policy["PolicyDocument"]["Statement"]
    on_keys = [found for found in statements if "Condition" in found]
    assert sorted(granted(on_keys), key=str) == sorted(map(wanted, permissions.of_operator(counters.COUNTERS)), key=str)
    bucket = {"Fn::GetAtt": ["DeadLetterBucket", "Arn"]}
    others = {str(found["Action"]): found["Resource"] for found in statements if "Condition" not in found}
    mappings = others.pop(str(["lambda:GetEventSourceMapping", "lambda:UpdateEventSourceMapping"]))
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
    }


def test_the_policy_for_the_command_is_never_replaced(dev: Template) -> None:
    """Nobody has attached the new one. Another description, name or path makes CloudFormation replace a policy."""
    policy = managed(dev, "OperatorPolicyArn")
    assert policy["Description"] == "Lets people run the command tally: look, mend, redrive"
    assert (policy["Path"], policy.get("ManagedPolicyName")) == ("/", None)
    assert dev.outputs["OperatorPolicyArn"]["Value"] == {"Ref": "OperatorPolicy7DB21D32"}


def test_the_command_may_not_touch_checkpoints_and_what_is_judged(dev: Template) -> None:
    found = granted(
        statement
        for statement in managed(dev, "OperatorPolicyArn")["PolicyDocument"]["Statement"]
        if "Condition" in statement
    )
    of_receipts = {grant.action for grant in found if grant.table == "ReceiptsTable"}
    assert of_receipts == {"PutItem", "GetItem"}, "of holds that go back, and of imports"
    rest = [grant for grant in found if grant.table == "CountsTable" and grant.pattern not in ("POST#*", "WORKSPACE#*")]
    assert {grant.action for grant in rest} == {
        "Query", "UpdateItem", "ConditionCheckItem",
    }  # fmt: skip
    assert {grant.action for grant in found if grant.pattern == "JUDGE"} == {"GetItem"}
    assert not {grant for grant in found if grant.pattern.startswith("CHECKPOINT#")}


def test_the_policy_for_other_lambdas_lets_them_invoke_the_aliases_only(dev: Template) -> None:
    policy = managed(dev, "InvokePolicyArn")
    [statement] = policy["PolicyDocument"]["Statement"]
    assert statement["Action"] == "lambda:InvokeFunction"
    aliases = [{"Ref": dev.alias_of(dev.functions()[module])} for module in CALLED]
    assert sorted(statement["Resource"], key=str) == sorted(aliases, key=str)
    assert "Condition" not in statement
    assert not {"Roles", "Users", "Groups"} & policy.keys()


@pytest.mark.parametrize("schedule", operations.SCHEDULES, ids=lambda schedule: schedule.function)
def test_a_scheduled_function_runs_behind_its_alias_and_is_not_retried(dev: Template, schedule: Schedule) -> None:
    alias = {"Ref": dev.alias_of(dev.functions()[schedule.function])}
    rules = [found["Properties"] for found in dev.of_type("AWS::Events::Rule").values()]
    [rule] = [rule for rule in rules if rule["Targets"][0]["Arn"] == alias]
    assert rule["ScheduleExpression"] == f"rate({schedule.every_min} minute{'s' * (schedule.every_min > 1)})"
    assert rule["State"] == "ENABLED"
    assert rule["Targets"][0]["RetryPolicy"] == {"MaximumRetryAttempts": 0}


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


def test_concurrency_is_reserved_only_where_it_is_asked_for(dev: Template, synthesize: Synthesize) -> None:
    """AWS refuses a reservation that a new account, with ten, cannot give."""
    template = synthesize(**FRUGAL)
    reserved = {"sweep": 1, **dict.fromkeys(CONSUMERS, 40)}
    for module in MODULES:
        properties = template.resources[template.functions()[module]]["Properties"]
        assert properties.get("ReservedConcurrentExecutions") == reserved.get(module)
        properties = dev.resources[dev.functions()[module]]["Properties"]
        assert "ReservedConcurrentExecutions" not in properties


def test_an_asynchronous_event_that_is_given_up_is_kept(dev: Template, prod: Template) -> None:
    """For every function that writes, behind its alias. Callers of the others wait for the answer."""
    queue = dev.only_name("AWS::SQS::Queue")
    functions, found = dev.functions(), {}
    for config in invoke_configs(dev, CALLED):
        properties = config["Properties"]
        assert properties["Qualifier"] == "live"
        assert properties["DestinationConfig"] == {"OnFailure": {"Destination": {"Fn::GetAtt": [queue, "Arn"]}}}
        found[properties["FunctionName"]["Ref"]] = config["DependsOn"]
    assert set(found) == {functions[module] for module in ASYNCHRONOUS}
    assert {"plays", "likes", "visits", "increments", "holds"} <= set(ASYNCHRONOUS)
    for function, waits_for in found.items():
        assert dev.alias_of(function) in waits_for
    properties = dev.only("AWS::SQS::Queue")
    assert properties == {"MessageRetentionPeriod": 14 * 24 * 3600, "SqsManagedSseEnabled": True}
    [denied] = dev.only("AWS::SQS::QueuePolicy")["PolicyDocument"]["Statement"]
    assert (denied["Effect"], denied["Condition"]) == ("Deny", {"Bool": {"aws:SecureTransport": "false"}})
    assert dev.outputs["FailedEventsUrl"]["Value"] == {"Ref": queue}
    assert (dev.resources[queue]["DeletionPolicy"], prod.resources[queue]["DeletionPolicy"]) == ("Delete", "Retain")


def test_a_scheduled_function_ends_before_it_runs_again(dev: Template) -> None:
    for schedule in operations.SCHEDULES:
        assert dev.resources[dev.functions()[schedule.function]]["Properties"]["Timeout"] < schedule.every_min * 60
