"""Tally's own rules for templates, beside cdk-nag and cfn-lint. Each rule yields its violations.

The docstring of a rule is its reason.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from tally.cdk.quotas import QUOTAS, usage
from tests.infra.template import Json, Template, as_list, as_text, queried_metrics

Rule = Callable[[Template], Iterator[str]]

OWN_NAMESPACE = "Tally"
REFERENCE = re.compile(r"\$\{(\w+)(\.\w+)?\}")
REGION_REFERENCE = "${AWS::Region}"
REGION_AT_END = re.compile(r"\b[a-z]{2}-[a-z]+-\d$")  # names in the edge stack end with the region of the API
# Types whose names are unique over all regions of an account (of a bucket: over all accounts), and the name's path.
# The names of alarms, functions, tables, queues and user pool domains are unique in a region only.
GLOBAL_NAMES = {
    "AWS::CloudFront::CachePolicy": ("CachePolicyConfig", "Name"),
    "AWS::CloudFront::Function": ("Name",),
    "AWS::CloudFront::KeyValueStore": ("Name",),
    "AWS::CloudFront::OriginAccessControl": ("OriginAccessControlConfig", "Name"),
    "AWS::CloudFront::OriginRequestPolicy": ("OriginRequestPolicyConfig", "Name"),
    "AWS::CloudFront::ResponseHeadersPolicy": ("ResponseHeadersPolicyConfig", "Name"),
    "AWS::CloudWatch::Dashboard": ("DashboardName",),
    "AWS::IAM::Group": ("GroupName",),
    "AWS::IAM::InstanceProfile": ("InstanceProfileName",),
    "AWS::IAM::ManagedPolicy": ("ManagedPolicyName",),
    "AWS::IAM::Role": ("RoleName",),
    "AWS::IAM::User": ("UserName",),
    "AWS::S3::Bucket": ("BucketName",),
    "AWS::WAFv2::WebACL": ("Name",),  # a web ACL for CloudFront is always in us-east-1
}

SHARE = 0.85  # a stack may use this share of each quota, because a team adds counters
# Quotas that a stack may use up, because a new counter does not use more of them.
MAY_BE_USED_UP = {
    "readers of a table's stream", "characters of a function's description", "metrics of an alarm's expression",
}  # fmt: skip
WRITES = {"dynamodb:PutItem", "dynamodb:UpdateItem", "dynamodb:DeleteItem"}


def metrics_name_their_stack(template: Template) -> Iterator[str]:
    """If a metric's dimensions do not name the stage, two stages share the metric, and dev raises prod's alarms."""
    for where, (namespace, metric, dimensions) in _named_metrics(template):
        if namespace == template.stack:  # a metric of the access log, whose namespace is the name of the stack
            continue
        if namespace == OWN_NAMESPACE:
            if dimensions.get("service") != template.stack:
                yield f"{where}: {metric} of service {dimensions.get('service')}"
            continue
        if template.stack in dimensions.values():  # a metric of the web ACL, which has the name of its stack
            continue
        # Metrics of CloudFront have the dimension Region=Global.
        references = [REFERENCE.match(value) for value in dimensions.values() if value != "Global"]
        if not references or not all(match and match[1] in template.resources for match in references):
            yield f"{where}: {namespace} {metric} of {dimensions}, which names no resource of the stack"


def global_names_have_the_region(template: Template) -> Iterator[str]:
    """Without the region, a stage in a second region would use a name of the first region, and roll back."""
    for id_, name in global_names(template).items():
        if REGION_REFERENCE not in name and not REGION_AT_END.search(name):
            yield f"{id_}: {name} has no region"


def global_names(template: Template) -> dict[str, str]:
    """Returns the names that must be unique over all regions, by logical id.

    If a resource has no name in the template, CloudFormation makes a unique name.
    """
    names = {}
    for id_, resource in template.resources.items():
        name: Any = resource.get("Properties", {}) if resource["Type"] in GLOBAL_NAMES else {}
        for part in GLOBAL_NAMES.get(resource["Type"], ()):
            name = name.get(part, {})
        if name:
            names[id_] = as_text(name)
    return names


def access_logs_have_vended_names(template: Template) -> Iterator[str]:
    """Unless a log group's name begins with /aws/vendedlogs/, API Gateway adds the group to a policy of the region.

    All APIs share this policy of at most 5,120 characters. A longer policy fails: "policy document length exceeds".
    """
    for id_, stage in template.of_type("AWS::ApiGatewayV2::Stage").items():
        group = stage["Properties"]["AccessLogSettings"]["DestinationArn"]["Fn::GetAtt"][0]
        name = json.dumps(template.resources[group]["Properties"].get("LogGroupName", ""))
        if "/aws/vendedlogs/" not in name:
            yield f"{id_} logs to {name}"


def writers_wait_for_consumers(template: Template) -> Iterator[str]:
    """If a consumer does not know a new counter, the consumer stores dead letters, or books one half of each change."""
    mappings = template.of_type("AWS::Lambda::EventSourceMapping")
    consumers = {mapping["Properties"]["FunctionName"]["Ref"] for mapping in mappings.values()}
    for alias in sorted(_writing_aliases(template) - consumers):
        awaited = set(as_list(template.resources[alias].get("DependsOn", [])))
        if missing := sorted((set(mappings) | consumers) - awaited):
            yield f"{alias} does not wait for {', '.join(missing)}"
    yield from (f"{id_} waits for itself" for id_ in template.resources if id_ in _dependencies(template, id_))


def stacks_leave_room_in_the_quotas(template: Template) -> Iterator[str]:
    """If a new counter exceeds a quota, the deploy fails halfway."""
    for quota, subject, used in usage(template.body, template.stack):
        limit = QUOTAS[quota].most * (1 if quota in MAY_BE_USED_UP else SHARE)
        if used > limit:
            yield f"{subject}: {used} {quota}, of {QUOTAS[quota].most}"


def services_act_for_this_account_only(template: Template) -> Iterator[str]:
    """Unless a condition names this account or one of its resources, a service may use a resource for any account.

    Roles need no condition: to give a role to a service, a caller needs iam:PassRole in this account.
    """
    for id_, resource in template.resources.items():
        properties = resource.get("Properties", {})
        if resource["Type"] == "AWS::Lambda::Permission" and not {"SourceArn", "SourceAccount"} & properties.keys():
            yield f"{id_}: {properties['Principal']} may invoke for any account"
        for statement in _resource_statements(properties):
            if not re.search(r'"aws:Source(Arn|Account)"', json.dumps(statement.get("Condition", {}))):
                yield f"{id_}: {statement['Principal']} may {statement['Action']} for any account"


RULES: tuple[Rule, ...] = (
    services_act_for_this_account_only,
    metrics_name_their_stack,
    global_names_have_the_region,
    access_logs_have_vended_names,
    writers_wait_for_consumers,
    stacks_leave_room_in_the_quotas,
)


def _resource_statements(node: Any) -> Iterator[Json]:
    """Yields the Allow statements of every resource policy in the properties of a resource."""
    if isinstance(node, dict):
        if node.get("Effect") == "Allow" and "Principal" in node:
            yield node
        node = [part for key, part in node.items() if key != "AssumeRolePolicyDocument"]
    if isinstance(node, list):
        for part in node:
            yield from _resource_statements(part)


def _named_metrics(template: Template) -> Iterator[tuple[str, tuple[str, str, dict[str, str]]]]:
    """Yields an alarm's id or a widget's title, and (namespace, metric, dimensions), for each metric that it reads."""
    for id_, alarm in template.of_type("AWS::CloudWatch::Alarm").items():
        properties = alarm["Properties"]
        yield from ((id_, metric) for metric in queried_metrics(properties))
        for metric in (entry["MetricStat"]["Metric"] for entry in properties["Metrics"] if "MetricStat" in entry):
            dimensions = {pair["Name"]: as_text(pair["Value"]) for pair in metric.get("Dimensions", [])}
            yield id_, (metric["Namespace"], metric["MetricName"], dimensions)
    for widget in template.widgets():
        for row in widget["properties"].get("metrics", []):
            names = [part for part in row if isinstance(part, str)]
            if names:
                yield (
                    widget["properties"]["title"],
                    (names[0], names[1], dict(zip(names[2::2], names[3::2], strict=True))),
                )


def _writing_aliases(template: Template) -> set[str]:
    """Returns the aliases of the functions that may write to a table."""
    return {
        template.alias_of(function)
        for function in template.functions().values()
        if WRITES & {action for statement in template.statements(function) for action in as_list(statement["Action"])}
    }


def _dependencies(template: Template, id_: str) -> set[str]:
    """Returns all resources that a deploy makes before this resource, because of references and `DependsOn`."""
    dependencies: set[str] = set()
    pending = [*_direct_dependencies(template, id_)]
    while pending:
        dependency = pending.pop()
        if dependency not in dependencies:
            dependencies.add(dependency)
            pending += _direct_dependencies(template, dependency)
    return dependencies


def _direct_dependencies(template: Template, id_: str) -> set[str]:
    resource = template.resources[id_]
    text = json.dumps(resource.get("Properties", {}))
    referenced = set(re.findall(r'"Ref": "(\w+)"', text)) | set(re.findall(r'"Fn::GetAtt": \["(\w+)"', text))
    return (referenced | set(as_list(resource.get("DependsOn", [])))) & template.resources.keys()
