"""The front door: the API's custom domain, and CloudFront with AWS WAF in front of it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from aws_cdk import Stack, assertions
from aws_cdk import aws_apigatewayv2 as http

import app
from tally.api.kind import Source
from tally.api.operation import Access
from tally.cdk.domain import create_custom_domain
from tally.cdk.options import CLIENT_RATE_WINDOW_S, Options, OptionsError
from tests.infra.conftest import BEHIND_CDN, DECLARED, EDGE_CERTIFICATE, LAVISH
from tests.infra.template import Json, Template

ALL_VIEWER_EXCEPT_HOST = "b689b0a8-53d0-40ab-baf2-68738e2966ac"  # AWS's ids of its managed policies
CACHING_DISABLED = "4135ea2d-6df8-44a3-9df3-4b5a84be39ad"

ROUTES = DECLARED.routes


def distribution(edge: Template) -> Json:
    config: Json = edge.only("AWS::CloudFront::Distribution")["DistributionConfig"]
    return config


def behaviors(edge: Template) -> list[Json]:
    config = distribution(edge)
    return [config["DefaultCacheBehavior"], *config["CacheBehaviors"]]


def test_the_domain_mapping_waits_for_the_stage(lavish: Template) -> None:
    """The mapping has the name of the stage, which is not a reference, so it needs DependsOn."""
    mapping = lavish.resources[lavish.only_name("AWS::ApiGatewayV2::ApiMapping")]
    assert lavish.only_name("AWS::ApiGatewayV2::Stage") in mapping["DependsOn"]


def test_the_methods_and_headers_of_callers_reach_the_api_on_every_path(edge: Template) -> None:
    """For example, CloudFront forwards the token. It leaves out Host, because API Gateway does not know its host."""
    methods = {route.method for route in ROUTES} | {"OPTIONS"}
    for behavior in behaviors(edge):
        assert behavior["ViewerProtocolPolicy"] == "https-only", "a redirect would lose the body"
        assert behavior["OriginRequestPolicyId"] == ALL_VIEWER_EXCEPT_HOST
        assert methods <= set(behavior["AllowedMethods"])
        assert "CachedMethods" not in behavior, "by default CloudFront keeps answers to GET and HEAD, and no preflight"
        assert behavior["Compress"] is False, (
            "compression would make the ETag of a counter weak, and If-Match would fail"
        )


def test_the_cache_keeps_only_the_paths_that_are_listed_here(edge: Template) -> None:
    config = distribution(edge)
    assert config["DefaultCacheBehavior"]["CachePolicyId"] == CACHING_DISABLED
    policy = edge.only_name("AWS::CloudFront::CachePolicy")
    policies = {behavior["PathPattern"]: behavior["CachePolicyId"] for behavior in config["CacheBehaviors"]}
    cached_paths = {"/openapi.json", "/visits/badge.svg", "/visits", "/tallies", "/series"}
    cached_paths |= {"/videos/*", "/posts/*", "/counters/*", "/console", "/console/*", "/client/*"}
    assert policies == {path: {"Ref": policy} for path in cached_paths}


def test_an_answer_that_a_cache_may_keep_depends_only_on_path_and_query() -> None:
    """The patterns of cached paths also match routes for users, but CloudFront keeps no answer with no-store."""
    cacheable = [route for route in ROUTES if route.is_cacheable]
    assert cacheable
    for route in cacheable:
        assert (route.method, route.access) == ("GET", Access.ANYONE), route.id
        assert {field.source for field in route.fields} <= {Source.PATH, Source.QUERY}, route.id


def test_the_default_client_rate_is_below_the_throttle_of_every_route() -> None:
    """So one client alone cannot exhaust a throttle, which all clients share."""
    lowest = min(route.throttle.rate_per_s for route in ROUTES)
    assert lowest > Options().client_rate / CLIENT_RATE_WINDOW_S


def test_the_edge_is_a_stack_in_us_east_1_that_waits_for_the_api(edge: Template, behind_cdn: Template) -> None:
    artifacts = json.loads((edge.folder / "manifest.json").read_text())["artifacts"]
    artifact: dict[str, Any] = artifacts["TallyEdge"]
    assert artifact["environment"] == "aws://unknown-account/us-east-1"
    assert artifact["properties"]["stackName"] == "Tally-prod-edge-eu-west-1"
    assert artifact["properties"]["terminationProtection"] is True
    assert "Tally" in artifact["dependencies"]
    assert "Fn::ImportValue" not in edge.text + behind_cdn.text, "the stacks must not refer to each other"


def test_two_deploys_add_mutual_tls_to_a_live_front_door_without_an_outage() -> None:
    """First CloudFront presents a certificate, then the API asks for it. If the API asked first, calls would fail."""
    for trust_store, asks in (("", False), ("s3://bucket/authorities.pem", True)):
        options = Options.from_context(BEHIND_CDN | {"originTrustStore": trust_store})
        stack = Stack()
        api = http.HttpApi(stack, "Api")
        create_custom_domain(stack, options, api, api.default_stage)  # type: ignore[arg-type]
        [domain] = assertions.Template.from_stack(stack).find_resources("AWS::ApiGatewayV2::DomainName").values()
        assert ("MutualTlsAuthentication" in domain["Properties"]) is asks
        assert options.cdn_client_certificate_arn == EDGE_CERTIFICATE, (
            "test_facts.py checks that CloudFront presents the certificate"
        )


def test_in_us_east_1_one_certificate_serves_both_domain_names() -> None:
    options = Options.from_context({**BEHIND_CDN, "certificateArn": EDGE_CERTIFICATE, "cdnCertificateArn": ""})
    assert (options.certificate_arn, options.edge_certificate_arn) == (EDGE_CERTIFICATE, EDGE_CERTIFICATE)


@pytest.mark.parametrize("region", ["us-east-1", "eu-west-2"])
def test_a_deploy_to_another_region_than_the_certificates_is_refused(
    monkeypatch: pytest.MonkeyPatch, region: str
) -> None:
    """The command `cdk` passes the region to the app in this variable. LAVISH has a certificate of eu-west-1."""
    monkeypatch.setenv("CDK_DEFAULT_REGION", region)
    with pytest.raises(OptionsError, match=f"certificateArn is of eu-west-1, and this deploys to {region}"):
        app.build(LAVISH)
