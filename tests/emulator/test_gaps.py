"""What the emulator cannot do, held as a fact: when a gap closes, its test fails, and `stack.bridged` can do less."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.emulator.server import Emulator
from tests.patience import wait_for

Json = dict[str, Any]
pytestmark = pytest.mark.long
SLOW_INIT_S = 4
POOL: Json = {"Type": "AWS::Cognito::UserPool"}
TRUST: Json = {"Version": "2012-10-17", "Statement": []}
ROLE: Json = {"Type": "AWS::IAM::Role", "Properties": {"AssumeRolePolicyDocument": TRUST}}
TABLE: Json = {
    "Type": "AWS::DynamoDB::Table",
    "Properties": {
        "KeySchema": [{"AttributeName": "PK", "KeyType": "HASH"}],
        "AttributeDefinitions": [{"AttributeName": "PK", "AttributeType": "S"}],
        "BillingMode": "PAY_PER_REQUEST",
        "StreamSpecification": {"StreamViewType": "NEW_AND_OLD_IMAGES"},
    },
}
FUNCTION: Json = {
    "Type": "AWS::Lambda::Function",
    "Properties": {
        "Code": {"ZipFile": f"import time\ntime.sleep({SLOW_INIT_S})\ndef handler(event, context): return 1"},
        "Handler": "index.handler",
        "Runtime": "python3.14",
        "SnapStart": {"ApplyOn": "PublishedVersions"},
        "Role": {"Fn::GetAtt": ["Role", "Arn"]},
    },
}
VERSION: Json = {"Type": "AWS::Lambda::Version", "Properties": {"FunctionName": {"Ref": "Function"}}}
MAPPING: Json = {
    "Type": "AWS::Lambda::EventSourceMapping",
    "Properties": {
        "EventSourceArn": {"Fn::GetAtt": ["Table", "StreamArn"]},
        "FunctionName": {"Ref": "Function"},
        "StartingPosition": "LATEST",
        "TumblingWindowInSeconds": 60,
        "MaximumBatchingWindowInSeconds": 1,
    },
}
API: Json = {"Type": "AWS::ApiGatewayV2::Api", "Properties": {"Name": "api", "ProtocolType": "HTTP"}}
THROTTLE: Json = {"ThrottlingRateLimit": 1, "ThrottlingBurstLimit": 1}
STAGE: Json = {
    "Type": "AWS::ApiGatewayV2::Stage",
    "Properties": {
        "ApiId": {"Ref": "Api"},
        "StageName": "$default",
        "DefaultRouteSettings": THROTTLE,
        "RouteSettings": {"GET /health": THROTTLE},
    },
}
OTHERS = {
    "Role": ROLE,
    "Table": TABLE,
    "Function": FUNCTION,
    "Version": VERSION,
    "Mapping": MAPPING,
    "Api": API,
    "Stage": STAGE,
}


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    running = Emulator(tmp_path_factory.mktemp("emulator"))
    yield running
    running.stop()


def made(emulator: Emulator, name: str, resources: Json) -> tuple[str, str, dict[str, str]]:
    """Make a stack of these resources: its status, its first failure, and the physical ids."""
    cloudformation = emulator.client("cloudformation")
    cloudformation.create_stack(StackName=name, TemplateBody=json.dumps({"Resources": resources}))

    def status() -> str:
        return str(cloudformation.describe_stacks(StackName=name)["Stacks"][0]["StackStatus"])

    wait_for(lambda: not status().endswith("PROGRESS"))
    events = cloudformation.describe_stack_events(StackName=name)["StackEvents"]
    failed = [event["ResourceStatusReason"] for event in events if event["ResourceStatus"] == "CREATE_FAILED"]
    ids = cloudformation.describe_stack_resources(StackName=name)["StackResources"]
    return status(), " ".join(failed), {one["LogicalResourceId"]: one["PhysicalResourceId"] for one in ids}


def test_an_alarm_on_an_expression_is_refused(emulator: Emulator) -> None:
    metric = {"MetricName": "Drift", "Namespace": "Tally"}
    half = {"Id": "m", "MetricStat": {"Metric": metric, "Period": 60, "Stat": "Sum"}, "ReturnData": False}
    expression = {"Id": "e", "Expression": "m * 2"}
    properties = {"Metrics": [half, expression], "Threshold": 1, "EvaluationPeriods": 1}
    properties["ComparisonOperator"] = "GreaterThanThreshold"
    _, why, _ = made(emulator, "alarm", {"Alarm": {"Type": "AWS::CloudWatch::Alarm", "Properties": properties}})
    assert "(metric math) is not supported" in why


def test_a_pool_has_no_provider_url(emulator: Emulator) -> None:
    value = {"Fn::GetAtt": ["Pool", "ProviderURL"]}
    issuer = {"Type": "AWS::SSM::Parameter", "Properties": {"Type": "String", "Value": value}}
    _, why, _ = made(emulator, "issuer", {"Pool": POOL, "Issuer": issuer})
    assert "ProviderURL does not exist" in why


def test_a_table_is_made_over_one_that_exists(emulator: Emulator) -> None:
    """AWS refuses it: *already exists*. A deploy that forgets which tables it has adopted rests on that."""
    dynamodb, properties = emulator.client("dynamodb"), {**TABLE["Properties"], "TableName": "there-before"}
    dynamodb.create_table(**{name: value for name, value in properties.items() if name != "StreamSpecification"})
    dynamodb.put_item(TableName="there-before", Item={"PK": {"S": "x"}})
    status, _, _ = made(emulator, "over", {"Table": {**TABLE, "Properties": properties}})
    assert status == "CREATE_COMPLETE"
    assert dynamodb.scan(TableName="there-before")["Count"] == 0


def test_windows_throttles_and_the_wait_for_a_snapshot_are_left_out(emulator: Emulator) -> None:
    """A mapping has no tumbling window, a route no throttle, and a stack is done before its version can be invoked."""
    status, why, ids = made(emulator, "others", OTHERS)
    assert (status, why) == ("CREATE_COMPLETE", "")
    functions, apis = emulator.client("lambda"), emulator.client("apigatewayv2")
    version = ids["Version"].rpartition(":")[2]
    assert functions.get_function_configuration(FunctionName=ids["Function"], Qualifier=version)["State"] == "Pending"
    mapping = functions.get_event_source_mapping(UUID=ids["Mapping"])
    assert (mapping["MaximumBatchingWindowInSeconds"], mapping.get("TumblingWindowInSeconds")) == (1, None)
    stage = apis.get_stage(ApiId=ids["Api"], StageName="$default")
    assert (stage["DefaultRouteSettings"], stage["RouteSettings"]) == ({}, {"GET /health": {}})


@pytest.mark.parametrize(
    ("condition", "decision"),
    [
        ({"ForAllValues:StringLike": {"dynamodb:LeadingKeys": ["VID#*"]}}, "allowed"),  # AWS denies this key
        ({"Null": {"dynamodb:LeadingKeys": "false"}}, "implicitDeny"),  # AWS allows any key
    ],
)
def test_policies_do_not_see_the_keys_of_a_request(emulator: Emulator, condition: Json, decision: str) -> None:
    """So the emulator decides no request by its policy; tests/infra/test_iam.py does."""
    allow = {"Effect": "Allow", "Action": "dynamodb:GetItem", "Resource": "*", "Condition": condition}
    key = {"ContextKeyName": "dynamodb:LeadingKeys", "ContextKeyType": "stringList", "ContextKeyValues": ["POST#a91f"]}
    [decided] = emulator.client("iam").simulate_custom_policy(
        PolicyInputList=[json.dumps({"Version": "2012-10-17", "Statement": [allow]})],
        ActionNames=["dynamodb:GetItem"],
        ContextEntries=[key],
    )["EvaluationResults"]
    assert decided["EvalDecision"] == decision
