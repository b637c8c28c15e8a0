"""The options of the front door: the API's own domain, and CloudFront with AWS WAF before it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from .option_error import OptionsError

EDGE_REGION = "us-east-1"  # CloudFront takes certificates and web ACLs from here alone
# AWS WAF's own bounds: https://docs.aws.amazon.com/waf/latest/APIReference/API_RateBasedStatement.html
CLIENT_RATE_MIN, CLIENT_RATE_MAX = 10, 2_000_000_000
CLIENT_RATE_WINDOW_S = 300
CLIENT_RATE_DEFAULT = 2000  # 6.7 a second: less than the lowest throttle of a route, which is 10
_NAME = re.compile(r"(?=.{4,64}\Z)([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z]([a-z0-9-]{0,61}[a-z0-9])")
_CERTIFICATE = re.compile(r"arn:(aws(?:-[a-z-]+)?):acm:([a-z0-9-]+):[0-9]{12}:certificate/[0-9a-zA-Z-]+")
_OBJECT = re.compile(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])/([!-~]{1,1024})")
_RATE = re.compile(r"[1-9][0-9]{0,9}")
_FOR_CDN = ("originName", "cdnCertificateArn", "clientRate", "cdnClientCertificateArn", "originTrustStore")
_NEEDED_BY_CDN = ("domainName", "originName")
KEYS = ("domainName", "certificateArn", "cdn", *_FOR_CDN)


@dataclass(frozen=True)
class MutualTls:
    """What the API's own domain asks of those who call it, so that only CloudFront does. Immutable."""

    client_certificate_arn: str
    """The certificate that CloudFront presents, in ACM in us-east-1."""
    bucket: str
    key: str
    """The S3 object with the authorities of such certificates, as PEM, in the region of the API."""


@dataclass(frozen=True)
class Cdn:
    """CloudFront and AWS WAF before the API. Immutable."""

    origin_name: str
    """The name of the API itself. Callers use the public one."""
    certificate_arn: str
    """Of the public name, in us-east-1."""
    client_rate: int = CLIENT_RATE_DEFAULT
    """Requests of one IP address in five minutes before it is refused."""
    mutual_tls: MutualTls | None = None


@dataclass(frozen=True)
class FrontDoor:
    """The API's domain, and whether CloudFront is in front of it. Immutable."""

    domain_name: str
    certificate_arn: str
    """Of the API's own name, in the region of the stack."""
    cdn: Cdn | None = None

    @property
    def url(self) -> str:
        """The address of the API, for callers."""
        return f"https://{self.domain_name}"

    @property
    def api_name(self) -> str:
        """The domain of the API itself: behind a CDN not the one that callers use."""
        return self.cdn.origin_name if self.cdn else self.domain_name

    @property
    def region(self) -> str:
        """The region of the stack: API Gateway takes certificates from its own."""
        return self.certificate_arn.split(":")[3]

    @classmethod
    def read(cls, given: Mapping[str, str]) -> FrontDoor | None:
        """Read and check the options, none of them empty; None for the address that AWS gives. Raises OptionsError."""
        if ("domainName" in given) != ("certificateArn" in given):
            raise OptionsError("context domainName and certificateArn go together: give both, or neither")
        cdn = given.get("cdn", "false")
        if cdn not in {"true", "false"}:
            raise OptionsError(f"context cdn is {cdn!r}: it must be true or false")
        for key in _NEEDED_BY_CDN if cdn == "true" else ():
            if key not in given:
                raise OptionsError(
                    f"context cdn needs {key}: without names of its own the API can be called around CloudFront"
                )
        for key in _FOR_CDN if cdn == "false" else ():
            if key in given:
                raise OptionsError(f"context {key} is for CloudFront: it needs cdn=true")
        if "domainName" not in given:
            return None
        return cls(
            _name(given, "domainName"),
            _certificate(given, "certificateArn"),
            _cdn(given) if cdn == "true" else None,
        )

    def check_region(self, region: str | None) -> None:
        """Refuse to deploy to another region than that of the certificate. None: not known. Raises OptionsError."""
        if region and region != self.region:
            raise OptionsError(
                f"context certificateArn is of {self.region}, and this deploys to {region}: "
                "API Gateway takes only certificates of its own region"
            )


def _cdn(given: Mapping[str, str]) -> Cdn:
    origin_name = _name(given, "originName")
    if origin_name == given["domainName"]:
        raise OptionsError("context originName is domainName: the API needs a name that callers do not know")
    # One certificate can serve both names if the stack is in that region.
    key = "cdnCertificateArn" if "cdnCertificateArn" in given else "certificateArn"
    return Cdn(origin_name, _edge_certificate(given, key, "cdnCertificateArn"), _client_rate(given), _mutual_tls(given))


def _mutual_tls(given: Mapping[str, str]) -> MutualTls | None:
    if ("cdnClientCertificateArn" in given) != ("originTrustStore" in given):
        raise OptionsError("context cdnClientCertificateArn and originTrustStore go together: give both, or neither")
    if "originTrustStore" not in given:
        return None
    arn = _edge_certificate(given, "cdnClientCertificateArn", "cdnClientCertificateArn")
    found = _OBJECT.fullmatch(given["originTrustStore"])
    if not found:
        raise OptionsError(f"context originTrustStore is {given['originTrustStore']!r}: it must be s3://bucket/key")
    return MutualTls(arn, bucket=found[1], key=found[2])


def _name(given: Mapping[str, str], key: str) -> str:
    name = given[key]
    if not _NAME.fullmatch(name):
        raise OptionsError(f"context {key} is {name!r}: it must be a name like api.example.com, in lower case")
    return name


def _certificate(given: Mapping[str, str], key: str) -> str:
    arn = given[key]
    if not _CERTIFICATE.fullmatch(arn):
        raise OptionsError(f"context {key} is {arn!r}: it must be arn:aws:acm:<region>:<account>:certificate/…")
    return arn


def _edge_certificate(given: Mapping[str, str], key: str, wanted: str) -> str:
    """A certificate for CloudFront from `key`. `wanted`: the option that gives one if that is in another region."""
    arn = _certificate(given, key)
    partition, region = arn.split(":")[1], arn.split(":")[3]
    if partition != "aws":
        raise OptionsError(f"context cdn is true, and {key} is of the partition {partition}: cdn=true needs aws")
    if region != EDGE_REGION:
        raise OptionsError(
            f"context {key} is of {region}: CloudFront takes only certificates of {EDGE_REGION}; give one as {wanted}"
        )
    return arn


def _client_rate(given: Mapping[str, str]) -> int:
    rate = given.get("clientRate", str(CLIENT_RATE_DEFAULT))
    if not _RATE.fullmatch(rate) or not CLIENT_RATE_MIN <= int(rate) <= CLIENT_RATE_MAX:
        raise OptionsError(
            f"context clientRate is {rate!r}: it must be a whole number from {CLIENT_RATE_MIN} to {CLIENT_RATE_MAX}"
        )
    return int(rate)
