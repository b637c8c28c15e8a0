"""The API's own domain."""

from __future__ import annotations

from aws_cdk import aws_apigatewayv2 as http
from aws_cdk import aws_certificatemanager as acm
from aws_cdk import aws_s3 as s3
from constructs import Construct

from .options import Options


def create_custom_domain(
    scope: Construct, options: Options, api: http.HttpApi, stage: http.HttpStage
) -> http.DomainName:
    """Creates the API's domain in API Gateway. With `origin_trust_store`, callers need a client certificate."""
    bucket, _, key = options.origin_trust_store.removeprefix("s3://").partition("/")
    domain = http.DomainName(
        scope,
        "Domain",
        domain_name=options.api_name,
        certificate=acm.Certificate.from_certificate_arn(scope, "Certificate", options.certificate_arn),
        security_policy=http.SecurityPolicy.TLS_1_2,
        mtls=http.MTLSConfig(bucket=s3.Bucket.from_bucket_name(scope, "TrustStore", bucket), key=key) if key else None,
    )
    http.ApiMapping(scope, "Mapping", api=api, domain_name=domain, stage=stage)
    return domain
