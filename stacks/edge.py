"""The front door: CloudFront and AWS WAF in front of the API."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from http import HTTPStatus

from aws_cdk import Acknowledgment, CfnOutput, Duration, Environment, RemovalPolicy, Stack, Validations
from aws_cdk import aws_certificatemanager as acm
from aws_cdk import aws_cloudfront as cloudfront
from aws_cdk import aws_cloudfront_origins as origins
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_wafv2 as waf
from constructs import Construct

from tally.api.operation import Operation, Route
from tally.cdk.edge_alarms import BODY_SIZE, CLIENT_RATE, EdgeAlarms
from tally.cdk.names import edge_stack_name
from tally.cdk.options import CLIENT_RATE_WINDOW_S, EDGE_REGION, Options
from tally.cdk.quotas import check_quotas

CACHE_TTL_MAX = Duration.days(1)  # no Cache-Control of the API says more: a counter's `max_age_s` is at most a day
# The stack sets 0 s for these errors. Otherwise CloudFront keeps them for 10 s, whatever the API's Cache-Control says.
CACHED_ERRORS = (400, 403, 404, 405, 414, 416, 500, 501, 502, 503, 504)
# The same texts as API Gateway's, which itself refuses bodies over 10 MB.
CLIENT_RATE_BODY, BODY_SIZE_BODY = '{"message":"Too Many Requests"}', '{"message":"Request Entity Too Large"}'
BODY_BYTES_MAX = Operation.body_bytes_max
"""The longest body (16 KB), except on paths that take longer bodies. AWS WAF reads no more than this of a body."""


class Edge(Stack):
    """CloudFront and AWS WAF in front of the API of one stage. CloudFront and AWS WAF must be in us-east-1.

    Tally's stack may be in another region, so this stack knows the API only by its domain name, `originName`.
    """

    def __init__(self, scope: Construct, id: str, *, routes: Sequence[Route], options: Options) -> None:
        super().__init__(
            scope,
            id,
            env=Environment(region=EDGE_REGION),
            stack_name=edge_stack_name(options.stage, options.region),
            description="Tally's front door: CloudFront and AWS WAF in front of its HTTP API",
            termination_protection=options.keeps_data,
        )
        origin = origins.HttpOrigin(
            options.origin_name,
            protocol_policy=cloudfront.OriginProtocolPolicy.HTTPS_ONLY,
            origin_ssl_protocols=[cloudfront.OriginSslPolicy.TLS_V1_2],
        )
        cache_policy = _origin_cache_policy(self)
        logs = _create_log_bucket(self, options.edge_logs) if options.edge_logs else None
        paths = _path_patterns(route for route in routes if route.is_cacheable)
        zero = Duration.seconds(0)
        distribution = cloudfront.Distribution(
            self,
            "Distribution",
            comment=self.stack_name,
            domain_names=[options.domain_name],
            certificate=acm.Certificate.from_certificate_arn(self, "Certificate", options.edge_certificate_arn),
            minimum_protocol_version=cloudfront.SecurityPolicyProtocol.TLS_V1_2_2021,
            http_version=cloudfront.HttpVersion.HTTP2_AND_3,
            # AWS WAF counts by address, and one IPv6 client may have 2**64 addresses. The API has only IPv4, too.
            enable_ipv6=False,
            enable_logging=logs is not None,
            log_bucket=logs,
            web_acl_id=_web_acl(self, routes, options.client_rate).attr_arn,
            default_behavior=_forwarding_behavior(origin, cloudfront.CachePolicy.CACHING_DISABLED),
            additional_behaviors={path: _forwarding_behavior(origin, cache_policy) for path in paths},
            error_responses=[cloudfront.ErrorResponse(http_status=status, ttl=zero) for status in CACHED_ERRORS],
        )
        if options.cdn_client_certificate_arn:
            _set_client_certificate(distribution, options.cdn_client_certificate_arn)
        _acknowledge_findings(distribution)
        EdgeAlarms(self, "Monitoring", distribution=distribution, options=options)
        check_quotas(self)
        if logs:
            CfnOutput(self, "EdgeLogsBucketName", value=logs.bucket_name, description="CloudFront's access log")
        target = f"Set a CNAME of {options.domain_name} to this"
        CfnOutput(self, "CnameTarget", value=distribution.domain_name, description=target)


def _create_log_bucket(scope: Construct, days: int) -> s3.Bucket:
    """Returns the bucket of the access log. CloudFront needs the ACLs that buckets refuse by default."""
    bucket = s3.Bucket(
        scope,
        "Logs",
        object_ownership=s3.ObjectOwnership.BUCKET_OWNER_PREFERRED,
        block_public_access=s3.BlockPublicAccess.BLOCK_ALL,
        encryption=s3.BucketEncryption.S3_MANAGED,
        enforce_ssl=True,
        lifecycle_rules=[s3.LifecycleRule(expiration=Duration.days(days))],
        removal_policy=RemovalPolicy.RETAIN,
    )
    Validations.of(bucket).acknowledge(
        Acknowledgment(
            id="AwsSolutions-S1",
            reason="The bucket holds an access log: a log of the log's readers would need a log, too",
        )
    )
    return bucket


def _path_patterns(routes: Iterable[Route]) -> list[str]:
    """Returns path patterns that match these routes, such as `/videos/*` for `/videos/{id}/plays`. A distribution takes
    few patterns, so a pattern that another pattern covers is left out."""
    patterns = {
        f"/{route.path.split('/')[1]}/*" if "{" in route.path or route.fixed_fields else route.path for route in routes
    }
    folders = tuple(pattern.removesuffix("*") for pattern in patterns if pattern.endswith("/*"))
    return sorted(pattern for pattern in patterns if pattern.endswith("/*") or not pattern.startswith(folders))


def _origin_cache_policy(scope: Construct) -> cloudfront.CachePolicy:
    """Returns the policy that keeps an answer as long as its Cache-Control says, and no answer without Cache-Control.

    The cache key has all that an answer depends on, so no caller gets the answer to another caller: path, query,
    encoding, token, the secret by which Tally knows a browser, and the page's origin (for the CORS headers).
    """
    return cloudfront.CachePolicy(
        scope,
        "AsTheAnswerSays",
        cache_policy_name=Stack.of(scope).stack_name,
        min_ttl=Duration.seconds(0),
        default_ttl=Duration.seconds(0),
        max_ttl=CACHE_TTL_MAX,
        query_string_behavior=cloudfront.CacheQueryStringBehavior.all(),
        header_behavior=cloudfront.CacheHeaderBehavior.allow_list("Authorization", "Origin", "Tally-Secret"),
        cookie_behavior=cloudfront.CacheCookieBehavior.none(),
        enable_accept_encoding_gzip=True,
    )


def _forwarding_behavior(
    origin: cloudfront.IOrigin, cache_policy: cloudfront.ICachePolicy
) -> cloudfront.BehaviorOptions:
    """Returns a behavior that forwards the whole request, except its Host header, which would not name the API."""
    return cloudfront.BehaviorOptions(
        origin=origin,
        cache_policy=cache_policy,
        origin_request_policy=cloudfront.OriginRequestPolicy.ALL_VIEWER_EXCEPT_HOST_HEADER,
        allowed_methods=cloudfront.AllowedMethods.ALLOW_ALL,
        viewer_protocol_policy=cloudfront.ViewerProtocolPolicy.HTTPS_ONLY,  # a redirect would lose the body
        compress=False,  # the API compresses; CloudFront would also make a number's ETag weak
    )


def _set_client_certificate(distribution: cloudfront.Distribution, certificate_arn: str) -> None:
    """Let CloudFront present its certificate to the API. CDK's `Distribution` has no option for this."""
    resource = distribution.node.default_child
    assert isinstance(resource, cloudfront.CfnDistribution)
    resource.add_property_override(
        "DistributionConfig.Origins.0.CustomOriginConfig.OriginMtlsConfig", {"ClientCertificateArn": certificate_arn}
    )


def _web_acl(scope: Construct, routes: Sequence[Route], requests_max: int) -> waf.CfnWebACL:
    """Returns the web ACL. A request that a rule refuses reaches neither API Gateway nor a function.

    If an address sends more than `requests_max` in five minutes, it gets 429 until it sends fewer. If a body is longer
    than its operation takes, the caller gets 413: API Gateway would bill each 512 KB of the body as a request.
    """
    too_often = waf.CfnWebACL.StatementProperty(
        rate_based_statement=waf.CfnWebACL.RateBasedStatementProperty(
            aggregate_key_type="IP", limit=requests_max, evaluation_window_sec=CLIENT_RATE_WINDOW_S
        )
    )
    answers = {CLIENT_RATE: CLIENT_RATE_BODY, BODY_SIZE: BODY_SIZE_BODY}
    return waf.CfnWebACL(
        scope,
        "WebAcl",
        name=Stack.of(scope).stack_name,
        scope="CLOUDFRONT",
        default_action=waf.CfnWebACL.DefaultActionProperty(allow={}),
        visibility_config=_visibility_config(Stack.of(scope).stack_name),
        custom_response_bodies={
            rule: waf.CfnWebACL.CustomResponseBodyProperty(content_type="APPLICATION_JSON", content=answer)
            for rule, answer in answers.items()
        },
        rules=[
            _rule(CLIENT_RATE, 0, too_often, HTTPStatus.TOO_MANY_REQUESTS, {"Retry-After": str(CLIENT_RATE_WINDOW_S)}),
            _rule(BODY_SIZE, 1, _body_size_statement(routes), HTTPStatus.REQUEST_ENTITY_TOO_LARGE, {}),
        ],
    )


def _rule(
    name: str, priority: int, statement: waf.CfnWebACL.StatementProperty, status: HTTPStatus, headers: dict[str, str]
) -> waf.CfnWebACL.RuleProperty:
    """Returns a rule: a request that matches `statement` gets this status, and the answer of the rule in `_web_acl`."""
    response = waf.CfnWebACL.CustomResponseProperty(
        response_code=status.value,
        custom_response_body_key=name,
        response_headers=[
            waf.CfnWebACL.CustomHTTPHeaderProperty(name=header, value=value)
            for header, value in {**headers, "Cache-Control": "no-store"}.items()
        ],
    )
    return waf.CfnWebACL.RuleProperty(
        name=name,
        priority=priority,
        statement=statement,
        action=waf.CfnWebACL.RuleActionProperty(block=waf.CfnWebACL.BlockActionProperty(custom_response=response)),
        visibility_config=_visibility_config(name),
    )


def _body_size_statement(routes: Sequence[Route]) -> waf.CfnWebACL.StatementProperty:
    """Returns a statement that matches long bodies, except on paths that take long bodies from callers with a token."""
    field = waf.CfnWebACL.FieldToMatchProperty
    untransformed = [waf.CfnWebACL.TextTransformationProperty(priority=0, type="NONE")]
    exempt_paths = sorted({route.path for route in routes if route.operation.body_bytes_max > BODY_BYTES_MAX})
    too_long = waf.CfnWebACL.StatementProperty(
        size_constraint_statement=waf.CfnWebACL.SizeConstraintStatementProperty(
            comparison_operator="GT",
            size=BODY_BYTES_MAX,
            field_to_match=field(body=waf.CfnWebACL.BodyProperty(oversize_handling="MATCH")),
            text_transformations=untransformed,
        )
    )
    on_other_paths = [
        waf.CfnWebACL.StatementProperty(
            not_statement=waf.CfnWebACL.NotStatementProperty(
                statement=waf.CfnWebACL.StatementProperty(
                    byte_match_statement=waf.CfnWebACL.ByteMatchStatementProperty(
                        field_to_match=field(uri_path={}),
                        positional_constraint="EXACTLY",
                        search_string=path,
                        text_transformations=untransformed,
                    )
                )
            )
        )
        for path in exempt_paths
    ]
    if not on_other_paths:
        return too_long
    too_long_and_not_exempt = waf.CfnWebACL.AndStatementProperty(statements=[too_long, *on_other_paths])
    return waf.CfnWebACL.StatementProperty(and_statement=too_long_and_not_exempt)


def _visibility_config(metric: str) -> waf.CfnWebACL.VisibilityConfigProperty:
    return waf.CfnWebACL.VisibilityConfigProperty(
        cloud_watch_metrics_enabled=True, metric_name=metric, sampled_requests_enabled=True
    )


def _acknowledge_findings(distribution: cloudfront.Distribution) -> None:
    Validations.of(distribution).acknowledge(
        Acknowledgment(
            id="AwsSolutions-CFR1",
            reason="Callers of every country may count; to exclude some, a deployer adds the restriction",
        ),
        Acknowledgment(
            id="AwsSolutions-CFR3",
            reason="API Gateway logs what reaches it; -c edgeLogs=30 keeps each visitor's address for 30 days",
        ),
    )
