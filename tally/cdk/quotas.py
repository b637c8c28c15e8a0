"""Checks, at synth, AWS's quotas that many counters or a long option can exceed, so that no deploy fails halfway."""

from __future__ import annotations

import json
from collections import Counter as Multiset
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jsii
from aws_cdk import (
    IPolicyValidationContext,
    IPolicyValidationPlugin,
    PolicyValidationPluginReport,
    Stack,
    Stage,
    Validations,
)
from constructs import Construct

from .options import OptionsError


class Quota(NamedTuple):
    """A limit of AWS, and the page that says so, below https://docs.aws.amazon.com/ (read in November 2026)."""

    most: int
    source: str


_CFN = "AWSCloudFormation/latest/UserGuide/cloudformation-limits.html"
_HTTP_API = "apigateway/latest/developerguide/http-api-quotas.html"
_IAM = "IAM/latest/UserGuide/reference_iam-quotas.html"
_LAMBDA = "lambda/latest/dg/gettingstarted-limits.html"
_CLOUDWATCH = "AmazonCloudWatch/latest/monitoring/cloudwatch_limits.html"
_DASHBOARD = "AmazonCloudWatch/latest/APIReference/CloudWatch-Dashboard-Body-Structure.html"
_COGNITO = "cognito-user-identity-pools/latest/APIReference"
_CLOUDFRONT = "AmazonCloudFront/latest/DeveloperGuide/cloudfront-limits.html"
QUOTAS = {
    "resources of a stack": Quota(500, _CFN),
    "outputs of a stack": Quota(200, _CFN),
    "bytes of a template": Quota(1_000_000, _CFN),
    "routes of an API": Quota(300, _HTTP_API),
    "audiences of an authorizer": Quota(50, _HTTP_API),
    "metrics of an alarm's expression": Quota(10, _CLOUDWATCH),
    "alarms in a widget": Quota(100, _DASHBOARD),
    "metrics in a widget": Quota(500, _CLOUDWATCH),
    "characters of all inline policies of a role": Quota(10_240, _IAM),
    "characters of a managed policy": Quota(6_144, _IAM),
    "bytes of a function's variables": Quota(4_096, _LAMBDA),
    "characters of a function's description": Quota(256, "lambda/latest/api/API_CreateFunction.html"),
    "bytes of the policy that says who may invoke an alias": Quota(20_480, _LAMBDA),
    "characters of the domain of a user pool": Quota(63, f"{_COGNITO}/API_CreateUserPoolDomain.html"),
    "readers of a table's stream": Quota(2, "amazondynamodb/latest/developerguide/ServiceQuotas.html"),
    "cache behaviors of a distribution": Quota(75, f"{_CLOUDFRONT}#limits-web-distributions"),
}
STATEMENT_LENGTH = 450  # bytes of one permission to invoke an alias, with three ARNs
# No region has a longer name, so no ARN of a deploy is longer than the ARN here.
PSEUDO_PARAMETERS = {"AWS::Partition": "aws", "AWS::Region": "ap-southeast-1", "AWS::AccountId": "123456789012"}
SUFFIX = "-" + 12 * "x"  # CloudFormation adds such a suffix to a name that it generates
NAME_MAX = 64  # the longest name of a function; CloudFormation shortens the part before the suffix to fit
# The ARN that a reference becomes, by the resource's type; `place`: region and account. For other types: the name.
ARNS = {
    "AWS::Lambda::Alias": "lambda:{place}:function:{name}:live",
    "AWS::Lambda::Function": "lambda:{place}:function:{name}",
    "AWS::Lambda::EventSourceMapping": "lambda:{place}:event-source-mapping:aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee",
    "AWS::DynamoDB::Table": "dynamodb:{place}:table/{name}",
    "AWS::S3::Bucket": "s3:::{name}",
    "AWS::SQS::Queue": "sqs:{place}:{name}",
    "AWS::SNS::Topic": "sns:{place}:{name}",
    "AWS::Logs::LogGroup": "logs:{place}:log-group:{name}:*",
}
ARNS_OF_REFS = ("lambda:{place}:function:{name}:live", "sns:")  # a `Ref` to these becomes an ARN; to others, a name
STREAM_ARN_SUFFIX = "/stream/2026-11-25T00:00:00.000"


@jsii.implements(IPolicyValidationPlugin)
class _Quotas:
    """A plugin that CDK runs over the templates of an app. CDK shows an error of `validate` in one line."""

    def __init__(self, app: Stage) -> None:
        self._app = app

    @property
    def name(self) -> str:
        """The name of the plugin in CDK's reports."""
        return "Tally"

    version = rule_ids = property(lambda _: None)  # CDK reads both; None: the plugin has neither

    def validate(self, context: IPolicyValidationContext) -> PolicyValidationPluginReport:
        stacks = [stack for stack in self._app.node.children if isinstance(stack, Stack)]
        names = {stack.template_file: stack.stack_name for stack in stacks}
        for path in map(Path, context.template_paths):
            for quota, subject, used in usage(json.loads(path.read_text()), names.get(path.name, path.name)):
                most, source = QUOTAS[quota]
                if used > most:
                    raise OptionsError(
                        f"{subject} would have {used} {quota}, and AWS takes {most} (https://docs.aws.amazon.com/{source}):"
                        " declare fewer counters or shorter options, or count some with a second Tally"
                    )
        return PolicyValidationPluginReport(success=True, violations=[])


def check_quotas(scope: Construct) -> None:
    """Makes synth fail if a stack of this construct's app exceeds a quota."""
    app = Stage.of(scope)
    if app and not app.node.try_find_child("TallyQuotas"):
        Construct(app, "TallyQuotas")  # the mark that the app has the plugin
        Validations.of(app).add_plugins(_Quotas(app))


def usage(template: Mapping[str, Any], stack: str) -> Iterator[tuple[str, str, int]]:
    """Yields (name in QUOTAS, what uses the quota, how much it uses). References are as long as they can become."""
    body = _Template(template.get("Resources", {}), stack)
    yield "resources of a stack", stack, len(body.resources)
    yield "outputs of a stack", stack, len(template.get("Outputs", {}))
    yield "bytes of a template", stack, len(json.dumps(template))
    for api, routes in body.count_by("AWS::ApiGatewayV2::Route", "ApiId"):
        yield "routes of an API", api, routes
    for id_, properties in body.of_type("AWS::ApiGatewayV2::Authorizer"):
        yield "audiences of an authorizer", id_, len(properties["JwtConfiguration"]["Audience"])
    for id_, properties in body.of_type("AWS::Cognito::UserPoolDomain"):
        yield "characters of the domain of a user pool", id_, len(body.resolved(properties["Domain"]))
    for id_, properties in body.of_type("AWS::CloudFront::Distribution"):
        yield "cache behaviors of a distribution", id_, len(properties["DistributionConfig"].get("CacheBehaviors", []))
    yield from _function_and_role_usage(body)
    for id_, properties in body.of_type("AWS::CloudWatch::Alarm"):
        yield "metrics of an alarm's expression", id_, len(properties.get("Metrics", []))
    for _, properties in body.of_type("AWS::CloudWatch::Dashboard"):
        for widget in json.loads(body.resolved(properties["DashboardBody"]))["widgets"]:
            title = f"the widget {widget['properties'].get('title', '')!r} of the dashboard"
            yield "alarms in a widget", title, len(widget["properties"].get("alarms", []))
            yield "metrics in a widget", title, len(widget["properties"].get("metrics", []))


class _Template(NamedTuple):
    """The resources of a template. `resolved` replaces each reference by the longest text that it can become."""

    resources: Mapping[str, Any]
    stack: str

    def of_type(self, type_: str) -> Iterator[tuple[str, Any]]:
        return ((id_, one.get("Properties", {})) for id_, one in self.resources.items() if one["Type"] == type_)

    def count_by(self, type_: str, name: str) -> Iterable[tuple[str, int]]:
        """Returns the number of resources of a type for each value of the property `name`."""
        return Multiset(str(self.resolved(properties[name])) for _, properties in self.of_type(type_)).items()

    def length(self, value: Any) -> int:
        """Returns the length of the value as JSON without spaces."""
        return len(json.dumps(self.resolved(value), separators=(",", ":")))

    def resolved(self, value: Any) -> Any:
        match value:
            case {"Ref": str(id_)}:
                return self._reference(id_, "")
            case {"Fn::GetAtt": [str(id_), str(attribute)]}:
                return self._reference(id_, attribute)
            case {"Fn::Join": [str(between), list(parts)]}:
                return between.join(str(self.resolved(part)) for part in parts)
            case dict():
                return {key: self.resolved(part) for key, part in value.items()}
            case list():
                return [self.resolved(part) for part in value]
        return value

    def _reference(self, id_: str, attribute: str) -> str:
        if id_ in PSEUDO_PARAMETERS:
            return PSEUDO_PARAMETERS[id_]
        resource = self.resources.get(id_, {"Type": ""})
        generated_name = f"{self.stack}-{id_}"[: NAME_MAX - len(SUFFIX)] + SUFFIX
        name = str(resource.get("Properties", {}).get("TableName", generated_name))
        arn = ARNS.get(resource["Type"])
        if arn is None or not (attribute or arn.startswith(ARNS_OF_REFS)):
            return name
        place = f"{PSEUDO_PARAMETERS['AWS::Region']}:{PSEUDO_PARAMETERS['AWS::AccountId']}"
        suffix = STREAM_ARN_SUFFIX if attribute == "StreamArn" else ""
        return f"arn:aws:{arn.format(place=place, name=name)}{suffix}"


def _function_and_role_usage(body: _Template) -> Iterator[tuple[str, str, int]]:
    for id_, properties in body.of_type("AWS::IAM::Role"):
        documents = [policy["PolicyDocument"] for policy in properties.get("Policies", [])]
        yield "characters of all inline policies of a role", id_, sum(map(body.length, documents))
    for id_, properties in body.of_type("AWS::IAM::ManagedPolicy"):
        yield "characters of a managed policy", id_, body.length(properties["PolicyDocument"])
    for id_, function in body.of_type("AWS::Lambda::Function"):
        yield "bytes of a function's variables", id_, body.length(function.get("Environment", {}).get("Variables", {}))
        yield "characters of a function's description", id_, len(function.get("Description", ""))
    for alias, allowed in body.count_by("AWS::Lambda::Permission", "FunctionName"):
        yield "bytes of the policy that says who may invoke an alias", alias, allowed * STATEMENT_LENGTH
    for stream, readers in body.count_by("AWS::Lambda::EventSourceMapping", "EventSourceArn"):
        yield "readers of a table's stream", stream, readers
