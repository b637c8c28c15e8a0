"""The front door: the API's own domain, and CloudFront with AWS WAF before it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tally.operation import Access, Source, by_route

import app
import operations
from counters import COUNTERS
from stacks.options import CLIENT_RATE_WINDOW_S, Options, OptionsError
from tests.infra.conftest import BEHIND_CDN, CERTIFICATE, EDGE_CERTIFICATE, OWN_DOMAIN
from tests.infra.template import Json, Template

ALL_VIEWER_EXCEPT_HOST = "b689b0a8-53d0-40ab-baf2-68738e2966ac"  # AWS's ids of its managed policies
CACHING_DISABLED = "4135ea2d-6df8-44a3-9df3-4b5a84be39ad"

ROUTES = by_route(operations.OPERATIONS, COUNTERS).values()


def distribution(edge: Template) -> Json:
    found: Json = edge.only("AWS::CloudFront::Distribution")["DistributionConfig"]
    return found


def behaviors(edge: Template) -> list[Json]:
    found = distribution(edge)
    return [found["DefaultCacheBehavior"], *found["CacheBehaviors"]]


def test_without_options_the_api_has_the_address_that_aws_gives(dev: Template) -> None:
    assert not dev.of_type("AWS::ApiGatewayV2::DomainName")
    assert not dev.only("AWS::ApiGatewayV2::Api").get("DisableExecuteApiEndpoint")
    assert "CnameTarget" not in dev.outputs
    assert not (dev.folder / "TallyEdge.template.json").exists()


@pytest.mark.parametrize(
    ("fixture", "name"), [("own_domain", "api.example.com"), ("behind_cdn", "o-7f3a9c21.example.com")]
)
def test_the_api_answers_under_its_own_name_alone(request: pytest.FixtureRequest, fixture: str, name: str) -> None:
    template: Template = request.getfixturevalue(fixture)
    assert template.only("AWS::ApiGatewayV2::Api")["DisableExecuteApiEndpoint"] is True
    domain = template.only("AWS::ApiGatewayV2::DomainName")
    assert domain["DomainName"] == name
    assert domain["DomainNameConfigurations"] == [
        {"CertificateArn": CERTIFICATE, "EndpointType": "REGIONAL", "SecurityPolicy": "TLS_1_2"}
    ]
    mapping = template.only("AWS::ApiGatewayV2::ApiMapping")
    assert mapping["ApiId"] == {"Ref": template.only_name("AWS::ApiGatewayV2::Api")}
    assert mapping["Stage"] == "$default"
    assert mapping["DomainName"] == {"Ref": template.only_name("AWS::ApiGatewayV2::DomainName")}
    assert not mapping.get("ApiMappingKey")
    made = template.resources[template.only_name("AWS::ApiGatewayV2::ApiMapping")]
    assert template.only_name("AWS::ApiGatewayV2::Stage") in made["DependsOn"], "its name alone is no reference"


def test_the_outputs_say_where_callers_find_the_api_and_which_names_to_set(
    own_domain: Template, behind_cdn: Template, edge: Template
) -> None:
    assert own_domain.outputs["ConsoleUrl"]["Value"] == "https://api.example.com/console"
    assert own_domain.outputs["ApiUrl"]["Value"] == behind_cdn.outputs["ApiUrl"]["Value"] == "https://api.example.com"
    for template, name in ((own_domain, "api.example.com"), (behind_cdn, "o-7f3a9c21.example.com")):
        target = template.outputs["CnameTarget"]
        assert target["Description"] == f"Set a CNAME of {name} to this"
        domain = template.only_name("AWS::ApiGatewayV2::DomainName")
        assert target["Value"] == {"Fn::GetAtt": [domain, "RegionalDomainName"]}
    target = edge.outputs["CnameTarget"]
    assert target["Description"] == "Set a CNAME of api.example.com to this"
    assert target["Value"] == {"Fn::GetAtt": [edge.only_name("AWS::CloudFront::Distribution"), "DomainName"]}


def test_only_cloudfront_has_the_certificate_that_the_api_asks_for(
    own_domain: Template, behind_cdn: Template, edge: Template
) -> None:
    assert "MutualTlsAuthentication" not in own_domain.only("AWS::ApiGatewayV2::DomainName")
    asked = behind_cdn.only("AWS::ApiGatewayV2::DomainName")["MutualTlsAuthentication"]
    assert asked == {"TruststoreUri": "s3://bucket/authorities.pem"}
    [origin] = distribution(edge)["Origins"]
    assert origin["CustomOriginConfig"]["OriginMtlsConfig"] == {"ClientCertificateArn": EDGE_CERTIFICATE}


def test_cloudfront_calls_the_api_by_its_own_name_and_only_by_tls(edge: Template) -> None:
    [origin] = distribution(edge)["Origins"]
    assert origin["DomainName"] == "o-7f3a9c21.example.com"
    assert origin["CustomOriginConfig"]["OriginProtocolPolicy"] == "https-only"
    assert origin["CustomOriginConfig"]["OriginSSLProtocols"] == ["TLSv1.2"]
    assert distribution(edge)["Aliases"] == ["api.example.com"]
    assert distribution(edge)["ViewerCertificate"]["AcmCertificateArn"] == EDGE_CERTIFICATE
    assert distribution(edge)["ViewerCertificate"]["MinimumProtocolVersion"] == "TLSv1.2_2021"
    assert {found["ViewerProtocolPolicy"] for found in behaviors(edge)} == {"https-only"}


def test_callers_headers_reach_the_api_whatever_the_path(edge: Template) -> None:
    """Token, key, agent and preflight. The name that they called must not: API Gateway would not know it."""
    methods = {operation.method for operation in operations.OPERATIONS} | {"OPTIONS"}
    for found in behaviors(edge):
        assert found["OriginRequestPolicyId"] == ALL_VIEWER_EXCEPT_HOST
        assert methods <= set(found["AllowedMethods"])
        assert "CachedMethods" not in found, "the default is GET and HEAD: no preflight is kept"
        assert found["Compress"] is False, "it would make the ETag of a counter weak, and If-Match would not match"


def test_no_answer_is_kept_but_of_the_paths_that_are_revalidated(edge: Template) -> None:
    found = distribution(edge)
    assert found["DefaultCacheBehavior"]["CachePolicyId"] == CACHING_DISABLED
    policy = edge.only_name("AWS::CloudFront::CachePolicy")
    kept = {behavior["PathPattern"]: behavior["CachePolicyId"] for behavior in found["CacheBehaviors"]}
    kept_paths = {"/beacon.js", "/openapi.json", "/visits/badge.svg", "/visits", "/tallies"}
    kept_paths |= {"/videos/*", "/posts/*", "/counters/*", "/console", "/console/*", "/visits/series"}
    kept_paths |= {"/top", "/top/*", "/series/*"}
    assert kept == {path: {"Ref": policy} for path in kept_paths}


def test_an_answer_is_kept_for_as_long_as_it_says_and_for_those_who_asked_the_same(edge: Template) -> None:
    policy = edge.only("AWS::CloudFront::CachePolicy")["CachePolicyConfig"]
    assert (policy["MinTTL"], policy["DefaultTTL"]) == (0, 0)
    assert policy["MaxTTL"] >= 3600, "the longest that an answer says"
    key = policy["ParametersInCacheKeyAndForwardedToOrigin"]
    assert key["QueryStringsConfig"] == {"QueryStringBehavior": "all"}
    assert key["HeadersConfig"] == {"HeaderBehavior": "whitelist", "Headers": ["Authorization", "Origin"]}
    assert key["CookiesConfig"] == {"CookieBehavior": "none"}
    assert (key["EnableAcceptEncodingGzip"], key["EnableAcceptEncodingBrotli"]) == (True, False)


def test_what_is_kept_depends_on_nothing_but_its_key() -> None:
    """A pattern takes every path below it: whatever says no-store there goes through to the API, token and all."""
    kept = [route for route in ROUTES if route.revalidated]
    assert kept
    for route in kept:
        assert (route.method, route.access) == ("GET", Access.ANYONE), route.id
        assert {field.source for field in route.fields} <= {Source.PATH, Source.QUERY}, route.id


def test_errors_are_not_kept_longer_than_they_say(edge: Template) -> None:
    """AWS lists these: it would keep each for 10 s, so that a busy second would last ten."""
    errors = {found["ErrorCode"]: found for found in distribution(edge)["CustomErrorResponses"]}
    assert set(errors) == {400, 403, 404, 405, 414, 416, 500, 501, 502, 503, 504}
    for code, found in errors.items():
        assert found == {"ErrorCode": code, "ErrorCachingMinTTL": 0}


def test_one_address_gets_429_above_its_rate(edge: Template) -> None:
    acl = edge.only("AWS::WAFv2::WebACL")
    assert acl["Scope"] == "CLOUDFRONT"
    assert acl["DefaultAction"] == {"Allow": {}}
    [rule] = acl["Rules"]
    assert rule["Statement"] == {
        "RateBasedStatement": {"AggregateKeyType": "IP", "Limit": 3000, "EvaluationWindowSec": 300}
    }
    refused = rule["Action"]["Block"]["CustomResponse"]
    assert refused["ResponseCode"] == 429
    assert {"Name": "Retry-After", "Value": "300"} in refused["ResponseHeaders"]
    body = acl["CustomResponseBodies"][refused["CustomResponseBodyKey"]]
    assert json.loads(body["Content"]) == {"message": "Too Many Requests"}
    assert distribution(edge)["WebACLId"] == {"Fn::GetAtt": [edge.only_name("AWS::WAFv2::WebACL"), "Arn"]}
    assert distribution(edge)["IPV6Enabled"] is False, "AWS WAF counts by address, and a client of IPv6 has plenty"


def test_by_default_one_client_uses_up_no_routes_throttle() -> None:
    lowest = min(operation.throttle.rate_per_s for operation in operations.OPERATIONS)
    assert lowest > Options().client_rate / CLIENT_RATE_WINDOW_S


def test_the_edge_is_a_stack_in_us_east_1_that_waits_for_the_api(edge: Template) -> None:
    artifacts = json.loads((edge.folder / "manifest.json").read_text())["artifacts"]
    made: dict[str, Any] = artifacts["TallyEdge"]
    assert made["environment"] == "aws://unknown-account/us-east-1"
    assert made["properties"]["stackName"] == "Tally-prod-edge-eu-west-1"
    assert made["properties"]["terminationProtection"] is True
    assert "Tally" in made["dependencies"]
    assert "Fn::ImportValue" not in edge.text, "one stack refers to nothing of the other"


def test_every_global_name_of_the_edge_has_the_region_of_its_api(edge: Template) -> None:
    """They are unique in the account, and every region's front door is in us-east-1."""
    assert edge.only("AWS::WAFv2::WebACL")["Name"] == "Tally-prod-edge-eu-west-1"
    assert edge.only("AWS::CloudFront::CachePolicy")["CachePolicyConfig"]["Name"] == "Tally-prod-edge-eu-west-1"


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
        app.build(OWN_DOMAIN)


def test_the_region_of_the_certificate_is_not_refused() -> None:
    options = Options.from_context(OWN_DOMAIN)
    options.check_region("eu-west-1")
    options.check_region(None)
