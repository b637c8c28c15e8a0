"""Our rules for the template, beside cdk-nag and cfn-lint. Each returns the violations that it finds.

The docstring of a rule is its reason. tests/mutations/stacks.txt has what breaks each.
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
REGION = "${AWS::Region}"
A_REGION = re.compile(r"\b[a-z]{2}-[a-z]+-\d$")  # the edge's names have that of its API
# Types whose names are unique in an account over all its regions (a bucket's: in all accounts), and where the name is.
# Not here: names that are unique in a region, such as those of alarms, functions, tables, queues and user pool domains.
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
    "AWS::WAFv2::WebACL": ("Name",),  # for CloudFront all of them are in us-east-1
}


# A stack may use a share of each quota: an account has other stacks, and the next counter comes.
SHARE = 0.85
SHARES = {"characters of a managed policy": 0.92}  # each counter adds about ten characters to one of two
# What may be used whole: both consumers read both streams; no counter makes these longer.
WHOLE = {
    "readers of a table's stream", "characters of a function's description", "metrics of an alarm's expression",
}  # fmt: skip
WRITES = {"dynamodb:PutItem", "dynamodb:UpdateItem", "dynamodb:DeleteItem"}


def metrics_of_its_own(template: Template) -> Iterator[str]:
    """Two stages of an account share a metric whose dimensions do not name the stage. Then dev raises prod's alarms."""
    for where, (namespace, metric, dimensions) in _named_metrics(template):
        if namespace == template.stack:  # of the access log, whose lines name no stack
            continue
        if namespace == OWN_NAMESPACE:
            if dimensions.get("service") != template.stack:
                yield f"{where}: {metric} of service {dimensions.get('service')}"
            continue
        if template.stack in dimensions.values():  # the web ACL, which has the name of its stack
            continue
        found = [REFERENCE.match(value) for value in dimensions.values() if value != "Global"]
        if not found or not all(each and each[1] in template.resources for each in found):
            yield f"{where}: {namespace} {metric} of {dimensions}, which names no resource of the stack"


def region_in_global_names(template: Template) -> Iterator[str]:
    """The same stage in a second region would collide with the name of the first region, and roll back."""
    for id_, name in global_names(template).items():
        if REGION not in name and not A_REGION.search(name):
            yield f"{id_}: {name} has no region"


def global_names(template: Template) -> dict[str, str]:
    """Returns names that must be unique over all regions, by logical id. CloudFormation makes a missing name."""
    found = {}
    for id_, resource in template.resources.items():
        name: Any = resource.get("Properties", {}) if resource["Type"] in GLOBAL_NAMES else {}
        for part in GLOBAL_NAMES.get(resource["Type"], ()):
            name = name.get(part, {})
        if name:
            found[id_] = as_text(name)
    return found


def access_logs_beside_the_regions_policy(template: Template) -> Iterator[str]:
    """API Gateway writes the name of a log group into one policy for the region, of 5,120 characters, unless the name
    begins with /aws/vendedlogs/. With many APIs a deploy fails: "policy document length exceeds"."""
    for id_, stage in template.of_type("AWS::ApiGatewayV2::Stage").items():
        group = stage["Properties"]["AccessLogSettings"]["DestinationArn"]["Fn::GetAtt"][0]
        name = json.dumps(template.resources[group]["Properties"].get("LogGroupName", ""))
        if "/aws/vendedlogs/" not in name:
            yield f"{id_} logs to {name}"


def writers_after_consumers(template: Template) -> Iterator[str]:
    """A consumer that does not know a new counter makes dead letters of its records, or books one half of them."""
    mappings = template.of_type("AWS::Lambda::EventSourceMapping")
    consumers = {mapping["Properties"]["FunctionName"]["Ref"] for mapping in mappings.values()}
    for alias in sorted(_writing_aliases(template) - consumers):
        waits = set(as_list(template.resources[alias].get("DependsOn", [])))
        if missing := sorted((set(mappings) | consumers) - waits):
            yield f"{alias} does not wait for {', '.join(missing)}"
    yield from (f"{id_} waits for itself" for id_ in template.resources if id_ in _waits_for(template, id_))


def room_in_the_quotas(template: Template) -> Iterator[str]:
    """A deploy that exceeds a quota fails halfway, on the day on which a counter is added."""
    for quota, subject, used in usage(template.body, template.stack):
        most = QUOTAS[quota].most * (1 if quota in WHOLE else SHARES.get(quota, SHARE))
        if used > most:
            yield f"{subject}: {used} {quota}, of {QUOTAS[quota].most}"


def services_for_this_account_alone(template: Template) -> Iterator[str]:
    """A service that may use a resource may do so for any account, unless a condition names this account or what of it
    asks. A role is not among them: who lets a service take it needs iam:PassRole here."""
    for id_, resource in template.resources.items():
        properties = resource.get("Properties", {})
        if resource["Type"] == "AWS::Lambda::Permission" and not {"SourceArn", "SourceAccount"} & properties.keys():
            yield f"{id_}: {properties['Principal']} may invoke for any account"
        for statement in _resource_statements(properties):
            if not re.search(r'"aws:Source(Arn|Account)"', json.dumps(statement.get("Condition", {}))):
                yield f"{id_}: {statement['Principal']} may {statement['Action']} for any account"


RULES: tuple[Rule, ...] = (
    services_for_this_account_alone,
    metrics_of_its_own,
    region_in_global_names,
    access_logs_beside_the_regions_policy,
    writers_after_consumers,
    room_in_the_quotas,
)


def _resource_statements(node: Any) -> Iterator[Json]:
    """Returns the Allow statements of every resource policy in the properties of a resource."""
    if isinstance(node, dict):
        if node.get("Effect") == "Allow" and "Principal" in node:
            yield node
        node = [part for key, part in node.items() if key != "AssumeRolePolicyDocument"]
    if isinstance(node, list):
        for part in node:
            yield from _resource_statements(part)


def _named_metrics(template: Template) -> Iterator[tuple[str, tuple[str, str, dict[str, str]]]]:
    """Returns (where, (namespace, metric, dimensions)) of every metric that an alarm or a widget names."""
    for id_, alarm in template.of_type("AWS::CloudWatch::Alarm").items():
        properties = alarm["Properties"]
        found = [entry["MetricStat"]["Metric"] for entry in properties.get("Metrics", []) if "MetricStat" in entry]
        yield from ((id_, series) for series in queried_metrics(properties))
        for metric in found or ([] if queried_metrics(properties) else [properties]):
            dimensions = {one["Name"]: as_text(one["Value"]) for one in metric.get("Dimensions", [])}
            yield id_, (metric["Namespace"], metric["MetricName"], dimensions)
    for widget in template.dashboard()["widgets"] if template.of_type("AWS::CloudWatch::Dashboard") else ():
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
        if WRITES & {action for found in template.statements(function) for action in as_list(found["Action"])}
    }


def _waits_for(template: Template, id_: str) -> set[str]:
    """Returns the resources that must exist before this one, by a reference or `DependsOn`."""
    seen: set[str] = set()
    left = [*_direct(template, id_)]
    while left:
        other = left.pop()
        if other not in seen:
            seen.add(other)
            left += _direct(template, other)
    return seen


def _direct(template: Template, id_: str) -> set[str]:
    resource = template.resources[id_]
    text = json.dumps(resource.get("Properties", {}))
    named = set(re.findall(r'"Ref": "(\w+)"', text)) | set(re.findall(r'"Fn::GetAtt": \["(\w+)"', text))
    return (named | set(as_list(resource.get("DependsOn", [])))) & template.resources.keys()
