"""One table of the properties that resources have in the templates. Most protect data, access or the bill."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from tests.infra.conftest import CERTIFICATE, DECLARED, EDGE_CERTIFICATE, VAULT
from tests.infra.template import Json, Template


class ByStage(NamedTuple):
    """A value that differs between dev and the stages that keep their data."""

    dev: Any
    prod: Any


class Reference(NamedTuple):
    """A reference to the only resource of a type. `attribute`: of `Fn::GetAtt`; empty for a `Ref`."""

    type: str
    attribute: str = ""


Facts = dict[str, dict[str, Any]]
"""The values of each resource of a type, or of the resource with a logical id, by the path in its properties.

None: the path has no value, so AWS's default holds.
"""

DELETION_POLICIES = {"DeletionPolicy": ByStage("Delete", "Retain"), "UpdateReplacePolicy": ByStage("Delete", "Retain")}
NOT_OVER_TLS = {"Bool": {"aws:SecureTransport": "false"}}
BOTH_IMAGES = {"StreamViewType": "NEW_AND_OLD_IMAGES"}
TOPIC = [Reference("AWS::SNS::Topic")]


def table(name: str, *keys: str, **properties: Any) -> dict[str, Any]:
    """Returns the facts of a table. `name`: without the stack's name. `keys`: the attributes of its primary key."""
    return properties | {
        "TableName": ByStage(f"Tally-dev-{name}", f"Tally-prod-{name}"),
        "KeySchema": [{"AttributeName": key, "KeyType": "RANGE" if key == "SK" else "HASH"} for key in keys],
        "AttributeDefinitions": [{"AttributeName": key, "AttributeType": "S"} for key in keys],
    }


WARM_AND_CAPPED_WRITES = {
    "WarmThroughput": {"WriteUnitsPerSecond": 20000},
    "OnDemandThroughput": {"MaxWriteRequestUnits": 30000},
}
BY_DEFAULT: Facts = {
    "AWS::DynamoDB::Table": DELETION_POLICIES
    | {
        "DeletionProtectionEnabled": ByStage(False, True),
        "PointInTimeRecoverySpecification": {"PointInTimeRecoveryEnabled": True},
        "TimeToLiveSpecification": {"AttributeName": "expiration", "Enabled": True},
        "BillingMode": "PAY_PER_REQUEST",
        "LocalSecondaryIndexes": None,  # with an index DynamoDB could not split a hot partition key
        "SSESpecification": None,  # DynamoDB's own key: no bill, no limit of KMS
        "OnDemandThroughput": None,  # the quota of the account limits the table
        "WarmThroughput": None,  # AWS chooses the first value for free. No later deploy can lower a value
    },
    "CountsTable": table("counts", "PK", "SK", StreamSpecification=BOTH_IMAGES),
    "ReceiptsTable": table("receipts", "id", StreamSpecification=BOTH_IMAGES),
    "LedgerTable": table("ledger", "PK", "SK", StreamSpecification=None),
    "UserPool": DELETION_POLICIES
    | {
        "DeletionProtection": ByStage("INACTIVE", "ACTIVE"),
        "AdminCreateUserConfig": {"AllowAdminCreateUserOnly": True},
        "UsernameConfiguration": {"CaseSensitive": False},  # cannot be changed later
        "UserPoolTier": "LITE",  # AWS's default is Essentials, at nearly three times the price
        "MfaConfiguration": "OPTIONAL",
        "EnabledMfas": ["SOFTWARE_TOKEN_MFA"],
    },
    "AWS::Cognito::UserPoolResourceServer": {
        "Identifier": "tally",
        "Scopes.0.ScopeName": "read",
        "Scopes.1.ScopeName": "write",
        "Scopes.2": None,
    },
    "AWS::Cognito::UserPoolGroup": {"GroupName": "operators", "UserPoolId": {"Ref": "UserPool"}, "RoleArn": None},
    "DeadLetterBucket": DELETION_POLICIES
    | {
        "BucketEncryption.ServerSideEncryptionConfiguration": [
            {"ServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}}
        ],
        "PublicAccessBlockConfiguration": dict.fromkeys(
            ("BlockPublicAcls", "BlockPublicPolicy", "IgnorePublicAcls", "RestrictPublicBuckets"), True
        ),
        "VersioningConfiguration": {"Status": "Enabled"},
        "LifecycleConfiguration.Rules": [
            {"ExpirationInDays": 90, "NoncurrentVersionExpiration": {"NoncurrentDays": 7}, "Status": "Enabled"},
            {"ExpiredObjectDeleteMarker": True, "Status": "Enabled"},
        ],
    },
    "AWS::S3::BucketPolicy": {
        "PolicyDocument.Statement.0.Effect": "Deny",
        "PolicyDocument.Statement.0.Action": "s3:*",
        "PolicyDocument.Statement.0.Condition": NOT_OVER_TLS,
        "PolicyDocument.Statement.1": None,
    },
    "AWS::SQS::Queue": DELETION_POLICIES | {"MessageRetentionPeriod": 14 * 24 * 3600, "SqsManagedSseEnabled": True},
    "AWS::SQS::QueuePolicy": {
        "PolicyDocument.Statement.0.Effect": "Deny",
        "PolicyDocument.Statement.0.Condition": NOT_OVER_TLS,
        "PolicyDocument.Statement.1": None,
    },
    "AWS::Logs::LogGroup": {"RetentionInDays": 30},
    "AWS::Lambda::Function": {"Runtime": "python3.14", "Architectures": ["arm64"]},
    "AWS::Lambda::Alias": {"Name": "live"},
    "AWS::Lambda::EventSourceMapping": {
        "BatchSize": 1000,
        "BisectBatchOnFunctionError": True,
        "FunctionResponseTypes": ["ReportBatchItemFailures"],
        "MaximumBatchingWindowInSeconds": 1,
        "MaximumRecordAgeInSeconds": -1,  # no limit: Lambda drops no record while the consumer fails
        "MaximumRetryAttempts": -1,  # no limit
        "ParallelizationFactor": 1,  # one invocation at a time reads a shard, in order
        "StartingPosition": "TRIM_HORIZON",
        "TumblingWindowInSeconds": 900,  # without a window the event lacks shardId; 900 s is Lambda's longest window
        "DestinationConfig": None,  # Lambda gives up no record that it could send to a destination
        "Enabled": None,  # so the mapping is enabled
    },
    "AWS::Events::Rule": {
        "ScheduleExpression": "rate(1 minute)",
        "State": "ENABLED",
        "Targets.0.RetryPolicy": {"MaximumRetryAttempts": 0},
        "Targets.1": None,
    },
    "AWS::CloudWatch::Alarm": {
        "ActionsEnabled": True,
        "AlarmActions": TOPIC,
        "OKActions": TOPIC,
        "InsufficientDataActions": TOPIC,  # some alarms exist to notice missing data
    },
    "AWS::SNS::TopicPolicy": {  # without the statement for CloudWatch no alarm could publish
        "PolicyDocument.Statement.0.Effect": "Deny",
        "PolicyDocument.Statement.0.Condition": NOT_OVER_TLS,
        "PolicyDocument.Statement.1.Action": "sns:Publish",
        "PolicyDocument.Statement.1.Principal": {"Service": "cloudwatch.amazonaws.com"},
        "PolicyDocument.Statement.1.Condition": {"StringEquals": {"aws:SourceAccount": {"Ref": "AWS::AccountId"}}},
        "PolicyDocument.Statement.2": None,
    },
    "AWS::ApiGatewayV2::Integration": {"IntegrationType": "AWS_PROXY", "PayloadFormatVersion": "2.0"},
    "AWS::ApiGatewayV2::Api": {
        "DisableExecuteApiEndpoint": False,
        "CorsConfiguration": {
            "AllowOrigins": ["*"],
            "AllowMethods": ["DELETE", "GET", "PATCH", "POST", "PUT"],
            "AllowHeaders": ["authorization", "content-type", "idempotency-key", "if-match", "tally-secret"],
            "ExposeHeaders": ["Date", "ETag", "Idempotency-Replayed", "Retry-After"],
            "MaxAge": 86_400,
        },
    },
    # If description, name or path change, CloudFormation replaces the policy, and attaches the new policy to nobody.
    "OperatorPolicy7DB21D32": {
        "Description": "Lets people run the command tally: look, mend, redrive",
        "Path": "/",
        "ManagedPolicyName": None,
        "Roles": None,
        "Users": None,
        "Groups": None,
    },
}
CUSTOM_DOMAIN = {
    "AWS::ApiGatewayV2::Api": {"DisableExecuteApiEndpoint": True},
    "AWS::ApiGatewayV2::DomainName": {
        "DomainNameConfigurations": [
            {"CertificateArn": CERTIFICATE, "EndpointType": "REGIONAL", "SecurityPolicy": "TLS_1_2"}
        ]
    },
    "AWS::ApiGatewayV2::ApiMapping": {
        "ApiId": Reference("AWS::ApiGatewayV2::Api"),
        "Stage": "$default",
        "DomainName": Reference("AWS::ApiGatewayV2::DomainName"),
        "ApiMappingKey": None,
    },
}
WITH_OPTIONS: dict[str, Facts] = {
    "lavish": {
        **CUSTOM_DOMAIN,
        "AWS::ApiGatewayV2::Api": {
            "DisableExecuteApiEndpoint": True,
            "CorsConfiguration.AllowOrigins": ["https://example.com", "http://localhost:3000"],
        },
        "AWS::ApiGatewayV2::DomainName": CUSTOM_DOMAIN["AWS::ApiGatewayV2::DomainName"]
        | {"DomainName": "api.example.com", "MutualTlsAuthentication": None},
        "UserPool": {
            "UserPoolTier": "ESSENTIALS",
            "MfaConfiguration": "ON",
            "UsernameConfiguration": None,  # Cognito's default: Ann@example.com and ann@example.com are two users
        },
    },
    "behind_cdn": {
        **CUSTOM_DOMAIN,
        "AWS::ApiGatewayV2::DomainName": CUSTOM_DOMAIN["AWS::ApiGatewayV2::DomainName"]
        | {
            "DomainName": "o-7f3a9c21.example.com",
            "MutualTlsAuthentication": {"TruststoreUri": "s3://bucket/authorities.pem"},
        },
        "CountsTable": WARM_AND_CAPPED_WRITES,
        "ReceiptsTable": WARM_AND_CAPPED_WRITES,
        "LedgerTable": {"WarmThroughput": None, "OnDemandThroughput": None},  # strangers do not write to the ledger
        "DeadLetterBucket": {"LifecycleConfiguration.Rules.0.ExpirationInDays": 30},
        "AWS::Lambda::Function": {
            "Environment.Variables.TALLY_RECEIPT_TTL_S": str(48 * 3600),
            "Environment.Variables.TALLY_SERIES_DAYS": "400",
            "Environment.Variables.TALLY_CONSOLE_CLIENT": None,  # the stack has no user pool, but a team's issuer
        },
        "AWS::Backup::BackupVault": {"DeletionPolicy": "RetainExceptOnCreate", "UpdateReplacePolicy": "Retain"},
        "AWS::Backup::BackupPlan": {
            "BackupPlan.BackupPlanRule.0.ScheduleExpression": "cron(0 3 * * ? *)",
            "BackupPlan.BackupPlanRule.0.StartWindowMinutes": 60,  # AWS's lowest
            "BackupPlan.BackupPlanRule.0.TargetBackupVault": Reference("AWS::Backup::BackupVault"),
            "BackupPlan.BackupPlanRule.0.Lifecycle": {"DeleteAfterDays": 3},  # the copy of a large table takes hours
            "BackupPlan.BackupPlanRule.0.CopyActions": [
                {"DestinationBackupVaultArn": VAULT, "Lifecycle": {"DeleteAfterDays": 7}}
            ],
            "BackupPlan.BackupPlanRule.1": None,
        },
        "AWS::Backup::BackupSelection": {
            "BackupPlanId": Reference("AWS::Backup::BackupPlan"),
            "BackupSelection.Resources": [
                {"Fn::GetAtt": [f"{table}Table", "Arn"]} for table in ("Counts", "Receipts", "Ledger")
            ],
            "BackupSelection.ListOfTags": None,
        },
        "AWS::SNS::Subscription": {
            "Protocol": "email",
            "Endpoint": "ops@example.com",
            "TopicArn": Reference("AWS::SNS::Topic"),
        },
        "AWS::ApiGatewayV2::Authorizer": {
            "JwtConfiguration": {"Issuer": "https://login.example.com/", "Audience": ["tally", "other"]}
        },
    },
    "edge": {
        "AWS::CloudWatch::Alarm": BY_DEFAULT["AWS::CloudWatch::Alarm"],
        "AWS::SNS::TopicPolicy": BY_DEFAULT["AWS::SNS::TopicPolicy"],
        "AWS::SNS::Subscription": {"Protocol": "email", "Endpoint": "ops@example.com", "TopicArn": TOPIC[0]},
        "AWS::CloudFront::Distribution": {
            "DistributionConfig.Aliases": ["api.example.com"],
            "DistributionConfig.ViewerCertificate.AcmCertificateArn": EDGE_CERTIFICATE,
            "DistributionConfig.ViewerCertificate.MinimumProtocolVersion": "TLSv1.2_2021",
            "DistributionConfig.Origins.0.DomainName": "o-7f3a9c21.example.com",
            "DistributionConfig.Origins.0.CustomOriginConfig": {
                "OriginProtocolPolicy": "https-only",
                "OriginSSLProtocols": ["TLSv1.2"],
                "OriginMtlsConfig": {"ClientCertificateArn": EDGE_CERTIFICATE},
            },
            "DistributionConfig.Origins.1": None,
            # CloudFront would keep each of these errors for 10 s, so that a busy second would last ten.
            "DistributionConfig.CustomErrorResponses": [
                {"ErrorCode": code, "ErrorCachingMinTTL": 0}
                for code in (400, 403, 404, 405, 414, 416, 500, 501, 502, 503, 504)
            ],
            "DistributionConfig.WebACLId": Reference("AWS::WAFv2::WebACL", "Arn"),
            "DistributionConfig.Logging": {"Bucket": Reference("AWS::S3::Bucket", "RegionalDomainName")},
            "DistributionConfig.IPV6Enabled": False,  # AWS WAF counts by address, and an IPv6 client has many
        },
        "AWS::S3::Bucket": {
            "LifecycleConfiguration.Rules": [{"ExpirationInDays": 30, "Status": "Enabled"}],
            "OwnershipControls.Rules": [{"ObjectOwnership": "BucketOwnerPreferred"}],  # else CloudFront cannot write
            "DeletionPolicy": "Retain",
        },
        "AWS::CloudFront::CachePolicy": {
            "CachePolicyConfig.MinTTL": 0,
            "CachePolicyConfig.DefaultTTL": 0,
            "CachePolicyConfig.MaxTTL": 24 * 3600,
            "CachePolicyConfig.ParametersInCacheKeyAndForwardedToOrigin": {
                "QueryStringsConfig": {"QueryStringBehavior": "all"},
                "HeadersConfig": {
                    "HeaderBehavior": "whitelist",
                    "Headers": ["Authorization", "Origin", "Tally-Secret"],
                },
                "CookiesConfig": {"CookieBehavior": "none"},
                "EnableAcceptEncodingGzip": True,
                "EnableAcceptEncodingBrotli": False,
            },
        },
        "AWS::WAFv2::WebACL": {
            "Scope": "CLOUDFRONT",
            "DefaultAction": {"Allow": {}},
            "Rules.0.Statement": {
                "RateBasedStatement": {"AggregateKeyType": "IP", "Limit": 3000, "EvaluationWindowSec": 300}
            },
            "Rules.0.Action.Block.CustomResponse.ResponseCode": 429,
            "Rules.0.Action.Block.CustomResponse.ResponseHeaders.0": {"Name": "Retry-After", "Value": "300"},
            "CustomResponseBodies.ClientRate.Content": '{"message":"Too Many Requests"}',
            # API Gateway bills each 512 KB of a body. Functions take 16 KB, and more only at `/changes`.
            "Rules.1.Statement.AndStatement.Statements.0.SizeConstraintStatement": {
                "ComparisonOperator": "GT",
                "Size": 16384,  # the most that AWS WAF reads: a longer body is `oversize`
                "FieldToMatch": {"Body": {"OversizeHandling": "MATCH"}},
                "TextTransformations": [{"Priority": 0, "Type": "NONE"}],
            },
            "Rules.1.Statement.AndStatement.Statements.1.NotStatement.Statement.ByteMatchStatement": {
                "FieldToMatch": {"UriPath": {}},
                "PositionalConstraint": "EXACTLY",
                "SearchString": "/changes",
                "TextTransformations": [{"Priority": 0, "Type": "NONE"}],
            },
            "Rules.1.Statement.AndStatement.Statements.2": None,
            "Rules.1.Action.Block.CustomResponse.ResponseCode": 413,
            "Rules.1.Action.Block.CustomResponse.ResponseHeaders": [{"Name": "Cache-Control", "Value": "no-store"}],
            "CustomResponseBodies.BodySize.Content": '{"message":"Request Entity Too Large"}',
            "Rules.2": None,
        },
    },
}
FACTS = {"dev": BY_DEFAULT, "prod": BY_DEFAULT, **WITH_OPTIONS}
"""By the fixture that returns the template."""


def value_at(resource: Json, path: str) -> Any:
    """Returns the value at a path of the properties, or a deletion policy. None: the resource has no such value."""
    value: Any = resource if path in DELETION_POLICIES else resource["Properties"]
    for part in path.split("."):
        if isinstance(value, list):
            value = value[int(part)] if int(part) < len(value) else None
        else:
            value = (value or {}).get(part)
    return value


def expected_value(template: Template, context: str, value: Any) -> Any:
    """Returns a value of FACTS[context] as the template has it: for one stage, with CloudFormation's references."""
    match value:
        case ByStage():
            return value.dev if context == "dev" else value.prod
        case Reference():
            name = template.only_name(value.type)
            return {"Fn::GetAtt": [name, value.attribute]} if value.attribute else {"Ref": name}
        case list():
            return [expected_value(template, context, item) for item in value]
        case dict():
            return {name: expected_value(template, context, part) for name, part in value.items()}
    return value


def differences(template: Template, context: str, subject: str) -> Iterator[str]:
    """Yields a line for each property that differs. `subject`: a type or a logical id in FACTS[context]."""
    for name, resource in (template.of_type(subject) or {subject: template.resources[subject]}).items():
        for path, value in FACTS[context][subject].items():
            actual = value_at(resource, path)
            if actual != expected_value(template, context, value):
                yield f"{name}: {path} is {actual}, not {expected_value(template, context, value)}"


@pytest.mark.parametrize(
    ("context", "subject"), [(context, subject) for context in FACTS for subject in FACTS[context]]
)
def test_a_resource_has_the_values_of_its_facts(request: pytest.FixtureRequest, context: str, subject: str) -> None:
    assert [*differences(request.getfixturevalue(context), context, subject)] == []


def test_no_custom_resource_of_cdk_runs_in_the_account(dev: Template) -> None:
    """For example, CDK's way to empty a bucket adds a function that may delete objects."""
    types = {resource["Type"] for resource in dev.resources.values()}
    assert not [type_ for type_ in types if type_.startswith(("Custom::", "AWS::CloudFormation::CustomResource"))]


def test_a_stack_without_options_has_no_custom_domain_no_edge_and_no_mail(dev: Template) -> None:
    for type_ in ("AWS::ApiGatewayV2::DomainName", "AWS::SNS::Subscription"):
        assert not dev.of_type(type_)
    assert "CnameTarget" not in dev.outputs
    assert not (dev.folder / "TallyEdge.template.json").exists()


def test_every_schedule_runs_each_minute() -> None:
    """The table above has one rate for all rules."""
    assert {schedule.every_min for schedule in DECLARED.schedules} == {1}
