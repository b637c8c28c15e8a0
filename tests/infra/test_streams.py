"""The streams in the stack: how they reach their consumers, and the bucket for dead letters."""

from __future__ import annotations

import json

import pytest
from tally.operation import Table

import operations
from dev.stack.mappings import read_mapping
from tally.dynamo import keys
from tests.infra.template import Json, Template, listed

STREAMS = {"CountsTable": Table.COUNTS, "ReceiptsTable": Table.RECEIPTS}
CONSUMERS = [consumer.function for consumer in operations.CONSUMERS]
FILTERS = {  # written out a second time: the consumers depend on them
    ("rollup", "ReceiptsTable"): [{"eventName": ["INSERT", "MODIFY"]}],
    ("rollup", "CountsTable"): [
        {"eventName": ["INSERT"]},
        {"dynamodb": {"Keys": {"PK": {"S": [{"prefix": "HEARTBEAT#"}]}}}},
    ],
    ("drift", "ReceiptsTable"): [{"eventName": ["INSERT", "MODIFY"]}],
    ("drift", "CountsTable"): [],
}


def mappings(template: Template) -> dict[tuple[str, str], Json]:
    """The properties of the mappings, by the function behind the alias that they call and the stream's table."""
    aliases = {template.alias_of(name): module for module, name in template.functions().items()}
    found = {}
    for mapping in template.of_type("AWS::Lambda::EventSourceMapping").values():
        properties = mapping["Properties"]
        table, attribute = properties["EventSourceArn"]["Fn::GetAtt"]
        assert attribute == "StreamArn"
        assert (aliases[properties["FunctionName"]["Ref"]], table) not in found
        found[aliases[properties["FunctionName"]["Ref"]], table] = properties
    return found


def test_each_consumer_reads_both_streams_behind_its_alias(dev: Template) -> None:
    assert set(mappings(dev)) == {
        (consumer.function, name)
        for consumer in operations.CONSUMERS
        for name, table in STREAMS.items()
        if table in consumer.streams
    }
    assert set(mappings(dev)) == set(FILTERS)


def test_no_stream_has_a_third_reader(dev: Template) -> None:
    """A DynamoDB stream throttles more than two."""
    tables = [table for _, table in mappings(dev)]
    assert {table: tables.count(table) for table in tables} == {"CountsTable": 2, "ReceiptsTable": 2}


@pytest.mark.parametrize("which", FILTERS, ids="-".join)
def test_a_mapping_gives_up_no_record(dev: Template, which: tuple[str, str]) -> None:
    properties = dict(mappings(dev)[which])
    for name in ("EventSourceArn", "FunctionName", "FilterCriteria"):
        properties.pop(name, None)
    assert properties == {
        "BatchSize": 1000,
        "BisectBatchOnFunctionError": True,
        "FunctionResponseTypes": ["ReportBatchItemFailures"],
        "MaximumBatchingWindowInSeconds": 1,
        "MaximumRecordAgeInSeconds": -1,  # never: Lambda drops no record while the consumer fails
        "MaximumRetryAttempts": -1,
        "ParallelizationFactor": 1,  # one invocation at a time reads a shard, in order
        "StartingPosition": "TRIM_HORIZON",
        "TumblingWindowInSeconds": 900,  # without a window the event lacks shardId
    }


@pytest.mark.parametrize("which", FILTERS, ids="-".join)
def test_filters_look_at_the_kind_of_change_and_let_heartbeats_through(dev: Template, which: tuple[str, str]) -> None:
    criteria = mappings(dev)[which].get("FilterCriteria", {"Filters": []})
    assert [json.loads(entry["Pattern"]) for entry in criteria["Filters"]] == FILTERS[which]


def test_the_filter_lets_those_heartbeats_through_that_the_sweep_writes() -> None:
    [rollup] = [consumer for consumer in operations.CONSUMERS if consumer.prefixes]
    assert (rollup.function, rollup.prefixes) == ("rollup", {Table.COUNTS: keys.HEARTBEAT_START})


LIKE: Json = {"Keys": {"PK": {"S": "POST#a"}, "SK": {"S": "LIKE#USER#b"}}}
HEARTBEAT: Json = {"Keys": {"PK": {"S": "HEARTBEAT#7"}, "SK": {"S": "HEARTBEAT"}}}


@pytest.mark.parametrize(
    ("record", "does"),
    [
        ({"eventName": "INSERT", "dynamodb": LIKE}, True),
        ({"eventName": "MODIFY", "dynamodb": LIKE}, False),
        ({"eventName": "REMOVE", "dynamodb": LIKE}, False),
        ({"eventName": "INSERT", "dynamodb": HEARTBEAT}, True),
        ({"eventName": "MODIFY", "dynamodb": HEARTBEAT}, True),
        ({"eventName": "MODIFY", "dynamodb": {"Keys": {"PK": {"S": "HEARTBEAT"}}}}, False),
        ({"eventName": "MODIFY", "dynamodb": {"Keys": {"PK": {"N": "7"}}}}, False),
        ({"eventName": "INSERT", "dynamodb": {"Keys": {"PK": {"N": "7"}}}}, True),
        ({"eventName": "INSERT", "dynamodb": {}}, True),
        ({"eventName": "INSERT"}, True),
    ],
)
def test_the_rollup_gets_new_children_heartbeats_and_every_malformed_insert(
    dev: Template, record: Json, does: bool
) -> None:
    """Through the local stack's filter, which the template's own patterns go into."""
    properties = mappings(dev)["rollup", "CountsTable"]
    assert read_mapping("M", properties, "counts", "rollup").takes(record) is does


def test_a_mapping_waits_for_the_right_to_read(dev: Template) -> None:
    """CloudFormation makes the policy first, then function, version and alias, and last the mapping."""
    for module in ("rollup", "bookkeeper"):
        function = dev.functions()[module]
        role = dev.resources[function]["Properties"]["Role"]["Fn::GetAtt"][0]
        policies = {
            name
            for name, found in dev.of_type("AWS::IAM::Policy").items()
            if {"Ref": role} in found["Properties"]["Roles"]
        }
        assert policies
        assert policies <= set(dev.resources[function]["DependsOn"])


def test_consumers_are_for_streams_only(dev: Template) -> None:
    for module in CONSUMERS:
        alias = {"Ref": dev.alias_of(dev.functions()[module])}
        permissions = dev.of_type("AWS::Lambda::Permission").values()
        assert alias not in [permission["Properties"]["FunctionName"] for permission in permissions]
        assert f"{module.capitalize()}FunctionArn" not in dev.outputs


def test_the_bucket_is_closed_encrypted_and_forgets_after_90_days(dev: Template, prod: Template) -> None:
    for template in (dev, prod):
        assert set(template.of_type("AWS::S3::Bucket")) == {"DeadLetterBucket"}, "another name is an empty bucket"
        bucket = template.only("AWS::S3::Bucket")
        assert set(bucket["PublicAccessBlockConfiguration"].values()) == {True}
        assert len(bucket["PublicAccessBlockConfiguration"]) == 4
        [encrypted] = bucket["BucketEncryption"]["ServerSideEncryptionConfiguration"]
        assert encrypted["ServerSideEncryptionByDefault"] == {"SSEAlgorithm": "AES256"}
        assert bucket["VersioningConfiguration"] == {"Status": "Enabled"}
        overwritten = {"NoncurrentVersionExpiration": {"NoncurrentDays": 7}}
        assert bucket["LifecycleConfiguration"]["Rules"] == [
            {"ExpirationInDays": 90, **overwritten, "Status": "Enabled"},
            {"ExpiredObjectDeleteMarker": True, "Status": "Enabled"},
        ]
        [statement] = template.only("AWS::S3::BucketPolicy")["PolicyDocument"]["Statement"]
        assert (statement["Effect"], statement["Action"]) == ("Deny", "s3:*")
        assert statement["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}
        assert template.outputs["DeadLetterBucketName"]["Value"] == {"Ref": "DeadLetterBucket"}


@pytest.mark.parametrize("policy", ["DeletionPolicy", "UpdateReplacePolicy"])
def test_the_bucket_outlives_the_stack_unless_it_is_dev(dev: Template, prod: Template, policy: str) -> None:
    assert dev.resources["DeadLetterBucket"][policy] == "Delete"
    assert prod.resources["DeadLetterBucket"][policy] == "Retain"


def test_nothing_of_cdks_own_runs_in_the_account(dev: Template) -> None:
    """Emptying a bucket with the stack would bring a function that may delete."""
    assert {found["Properties"]["Runtime"] for found in dev.of_type("AWS::Lambda::Function").values()} == {"python3.14"}
    assert not [type_ for type_ in {found["Type"] for found in dev.resources.values()} if type_.startswith("Custom::")]


def test_nobody_else_may_touch_the_bucket(dev: Template) -> None:
    for module, function in dev.functions().items():
        actions = [action for found in dev.statements(function) for action in listed(found["Action"])]
        assert [action for action in actions if action.startswith("s3:")] == ["s3:PutObject"] * (module in CONSUMERS)
