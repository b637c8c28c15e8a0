"""The front door: the API's own domain, and CloudFront with AWS WAF before it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from aws_cdk import Stack, assertions
from aws_cdk import aws_apigatewayv2 as http

import app
from tally.api.kinds import Source
from tally.api.operation import Access
from tally.cdk.domain import create_custom_domain
from tally.cdk.options import CLIENT_RATE_WINDOW_S, Options, OptionsError
from tests.infra.conftest import BEHIND_CDN, DECLARED, EDGE_CERTIFICATE, LAVISH
from tests.infra.template import Json, Template

ALL_VIEWER_EXCEPT_HOST = "b689b0a8-53d0-40ab-baf2-68738e2966ac"  # AWS's ids of its managed policies
CACHING_DISABLED = "4135ea2d-6df8-44a3-9df3-4b5a84be39ad"

ROUTES = DECLARED.routes


def distribution(edge: Template) -> Json:
    found: Json = edge.only("AWS::CloudFront::Distribution")["DistributionConfig"]
    return found


def behaviors(edge: Template) -> list[Json]:
    found = distribution(edge)
    return [found["DefaultCacheBehavior"], *found["CacheBehaviors"]]


def test_the_name_waits_for_the_stage(lavish: Template) -> None:
    """The mapping refers to it by its name alone, which is no reference."""
    made = lavish.resources[lavish.only_name("AWS::ApiGatewayV2::ApiMapping")]
    assert lavish.only_name("AWS::ApiGatewayV2::Stage") in made["DependsOn"]


def test_callers_headers_reach_the_api_whatever_the_path(edge: Template) -> None:
    """Token, key, agent and preflight. The name that they called must not: API Gateway would not know it."""
    methods = {route.method for route in ROUTES} | {"OPTIONS"}
    for found in behaviors(edge):
        assert found["ViewerProtocolPolicy"] == "https-only", "a redirect would lose the body"
        assert found["OriginRequestPolicyId"] == ALL_VIEWER_EXCEPT_HOST
        assert methods <= set(found["AllowedMethods"])
        assert "CachedMethods" not in found, "the default is GET and HEAD: no preflight is kept"
        assert found["Compress"] is False, "it would make the ETag of a counter weak, and If-Match would not match"


def test_no_answer_is_kept_but_of_the_paths_that_are_revalidated(edge: Template) -> None:
    found = distribution(edge)
    assert found["DefaultCacheBehavior"]["CachePolicyId"] == CACHING_DISABLED
    policy = edge.only_name("AWS::CloudFront::CachePolicy")
    kept = {behavior["PathPattern"]: behavior["CachePolicyId"] for behavior in found["CacheBehaviors"]}
    kept_paths = {"/openapi.json", "/visits/badge.svg", "/visits", "/tallies", "/series"}
    kept_paths |= {"/videos/*", "/posts/*", "/counters/*", "/console", "/console/*", "/client/*"}
    assert kept == {path: {"Ref": policy} for path in kept_paths}


def test_what_is_kept_depends_on_nothing_but_its_key() -> None:
    """A pattern takes every path below it: whatever says no-store there goes through to the API, token and all."""
    kept = [route for route in ROUTES if route.is_cacheable]
    assert kept
    for route in kept:
        assert (route.method, route.access) == ("GET", Access.ANYONE), route.id
        assert {field.source for field in route.fields} <= {Source.PATH, Source.QUERY}, route.id


def test_by_default_one_client_uses_up_no_routes_throttle() -> None:
    lowest = min(route.throttle.rate_per_s for route in ROUTES)
    assert lowest > Options().client_rate / CLIENT_RATE_WINDOW_S


def test_the_edge_is_a_stack_in_us_east_1_that_waits_for_the_api(edge: Template) -> None:
    artifacts = json.loads((edge.folder / "manifest.json").read_text())["artifacts"]
    made: dict[str, Any] = artifacts["TallyEdge"]
    assert made["environment"] == "aws://unknown-account/us-east-1"
    assert made["properties"]["stackName"] == "Tally-prod-edge-eu-west-1"
    assert made["properties"]["terminationProtection"] is True
    assert "Tally" in made["dependencies"]
    assert "Fn::ImportValue" not in edge.text, "one stack refers to nothing of the other"


def test_a_live_front_door_gets_mutual_tls_in_two_deploys_of_which_none_is_an_outage() -> None:
    """CloudFront presents a certificate before the API asks for one. The other way round every call answers 502."""
    for given, asks in (("", False), ("s3://bucket/authorities.pem", True)):
        options = Options.from_context(BEHIND_CDN | {"originTrustStore": given})
        stack = Stack()
        api = http.HttpApi(stack, "Api")
        create_custom_domain(stack, options, api, api.default_stage)  # type: ignore[arg-type]
        [domain] = assertions.Template.from_stack(stack).find_resources("AWS::ApiGatewayV2::DomainName").values()
        assert ("MutualTlsAuthentication" in domain["Properties"]) is asks
        assert options.cdn_client_certificate_arn == EDGE_CERTIFICATE, "Edge presents it (test_facts.py)"


def test_one_certificate_serves_both_names_in_us_east_1() -> None:
    given = {**BEHIND_CDN, "certificateArn": EDGE_CERTIFICATE, "cdnCertificateArn": "", "clientRate": ""}
    options = Options.from_context(given)
    assert (options.certificate_arn, options.edge_certificate_arn) == (EDGE_CERTIFICATE, EDGE_CERTIFICATE)
    assert options.client_rate == Options().client_rate


@pytest.mark.parametrize("region", ["us-east-1", "eu-west-2"])
def test_a_deploy_to_another_region_than_the_certificates_is_refused(
    monkeypatch: pytest.MonkeyPatch, region: str
) -> None:
    """The command tells the app where it deploys."""
    monkeypatch.setenv("CDK_DEFAULT_REGION", region)
    with pytest.raises(OptionsError, match=f"certificateArn is of eu-west-1, and this deploys to {region}"):
        app.build(LAVISH)
