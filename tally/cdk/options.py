"""The options of a deployment, from the CDK context: `cdk deploy -c stage=prod -c pageHosts=example.com`.

Each field of Options has its name in the context, its check and its default in one place. docs/operations.md and
docs/front-door.md say what to choose.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any
from urllib.parse import urlsplit

from tally.api.operation import Visible

DEV = "dev"
LOGGED_SHARE = 0.05  # of the successes, outside dev
DEV_THROTTLE = 0.1  # strangers find a stage dev, too
# Lambda takes 4,096 bytes of variables for a function: these, and up to 900 of others (tests/infra/rules.py).
PAGE_HOSTS_BYTES_MAX = 3200
EDGE_REGION = "us-east-1"  # CloudFront takes certificates and web ACLs from here alone
CLIENT_RATE_WINDOW_S = 300
# Regions of AWS without Lambda SnapStart (Taipei, New Zealand), on 2026-11-23:
# https://docs.aws.amazon.com/lambda/latest/dg/snapstart.html
NO_SNAPSHOTS = ("ap-east-2", "ap-southeast-6")
_STAGE = "[a-z][a-z0-9-]{0,15}"
KEPT_BY_COGNITO = ("aws", "amazon", "cognito")  # it refuses these in the domain of a user pool, which has the stage
_HOST = "[a-z0-9_]([a-z0-9._-]{0,251}[a-z0-9_])?"  # without a port, as tally/fields.py compares it
_NAME = r"(?=.{4,64}\Z)([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z]([a-z0-9-]{0,61}[a-z0-9])"
_CERTIFICATE = r"arn:aws(?:-[a-z-]+)?:acm:[a-z0-9-]+:[0-9]{12}:certificate/[0-9a-zA-Z-]+"
VAULT = r"arn:aws(?:-[a-z-]+)?:backup:[a-z0-9-]+:[0-9]{12}:backup-vault:[a-zA-Z0-9_-]{2,50}"
_OBJECT = "s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]/[!-~]{1,1024}"
_TABLES = re.compile(rf"Tally-({_STAGE})-([0-9]{{8}}T[0-9]{{6}})")

Read = Callable[[str, str], Any]
"""(name in the context, text) -> the value; None counts as missing. Raises OptionsError."""


class OptionsError(Exception):
    """The context is wrong. The message is one line, for the person who deploys."""


def _like(form: str, must: str, to: Callable[[str], Any] = str) -> Read:
    """Text of a form, whole."""

    def read(name: str, text: str) -> Any:
        if not re.fullmatch(form, text):
            raise OptionsError(f"context {name} is {text!r}: it must be {must}")
        return to(text)

    return read


def _whole(lowest: int, highest: int) -> Read:
    def read(name: str, text: str) -> int:
        if not re.fullmatch("[1-9][0-9]{0,9}", text) or not lowest <= int(text) <= highest:
            raise OptionsError(f"context {name} is {text!r}: it must be a whole number from {lowest} to {highest}")
        return int(text)

    return read


def _one_of(choices: Mapping[str, Any]) -> Read:
    def read(name: str, text: str) -> Any:
        if text not in choices:
            raise OptionsError(f"context {name} is {text!r}: it must be one of {', '.join(choices)}")
        return choices[text]

    return read


def _all(fits: Callable[[str], object], what: str) -> Read:
    """Entries between commas that fit, or `*` alone."""

    def read(name: str, text: str) -> tuple[str, ...] | None:
        found = _listed(text)
        for entry in found if found != ("*",) else ():
            if not fits(entry):
                raise OptionsError(f"context {name} has {entry!r}: give {what}, or * alone for any")
        return found or None

    return read


def _listed(text: str) -> tuple[str, ...]:
    """What is between commas, without empty entries, in the order given, each once."""
    return tuple(dict.fromkeys(entry.strip() for entry in text.split(",") if entry.strip()))


def _stage(name: str, text: str) -> str:
    stage: str = _like(_STAGE, "a lower case letter, then up to 15 of a-z 0-9 -")(name, text)
    for word in KEPT_BY_COGNITO:
        if word in stage:
            raise OptionsError(f"context {name} is {stage!r}: Cognito takes no domain with {word!r} in it")
    return stage


def _issuer(name: str, text: str) -> str:
    if _scheme_and_host(text)[0] != "https" or not _scheme_and_host(text)[1]:
        raise OptionsError(f"context {name} is {text!r}: API Gateway takes only https://…")
    return text


def _audience(name: str, text: str) -> tuple[str, ...]:
    if not _listed(text):
        raise OptionsError(f"context {name} is {text!r}: it names nobody")
    return _listed(text)


def _scheme_and_host(url: str) -> tuple[str, str]:
    """Both empty for what is no URL."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "", ""
    return parts.scheme, parts.netloc


def _is_origin(text: str) -> bool:
    scheme, host = _scheme_and_host(text)
    return scheme in {"http", "https"} and bool(host) and text == f"{scheme}://{host}"


def _hosts(name: str, text: str) -> tuple[str, ...] | None:
    hosts: tuple[str, ...] | None = _all(re.compile(_HOST).fullmatch, "hosts like example.com")(name, text.lower())
    if hosts and len(",".join(hosts)) > PAGE_HOSTS_BYTES_MAX:
        raise OptionsError(
            f"context {name} has {len(hosts)} hosts of {len(','.join(hosts))} bytes together: Lambda takes"
            f" {PAGE_HOSTS_BYTES_MAX}; give * alone, and refuse others in front of the API"
        )
    return hosts


def _moments(name: str, text: str) -> dict[str, str]:
    """The moment of each stage's tables: all stages share `cdk.json`."""
    moments: dict[str, str] = {}
    for entry in _listed(text):
        found = _TABLES.fullmatch(entry)
        if not found:
            raise OptionsError(f"context {name} has {entry!r}: give what `tally restore` prints, Tally-STAGE-MOMENT")
        if found[1] in moments:
            raise OptionsError(f"context {name} has 2 moments for the stage {found[1]}: give one")
        moments[found[1]] = found[2]
    return moments


def _option(name: str, read: Read, default: Any) -> Any:
    return field(default=default, metadata={"name": name, "read": read})


def _folder(url: str) -> str:
    return url.rstrip("/")


_name = _like(_NAME, "a name like api.example.com, in lower case")
_certificate = _like(_CERTIFICATE, "arn:aws:acm:<region>:<account>:certificate/…")
_vault = _like(VAULT, "arn:aws:backup:<region>:<account>:backup-vault:<name>")
_email = _like(r"[^@\s]+@[^@\s]+\.[^@\s]+", "a mail address")
_yes_no = _one_of({"true": True, "false": False})


@dataclass(frozen=True)
class Options:
    """The choices of one deployment. Immutable. Where nothing is chosen: empty text, 0, or None."""

    stage: str = _option("stage", _stage, DEV)
    issuer: str = _option("issuer", _issuer, "")
    """The issuer of the tokens. Without one the stack makes a Cognito user pool."""
    audience: tuple[str, ...] = _option("audience", _audience, ())
    mfa: str = _option("mfa", _one_of({"optional": "OPTIONAL", "required": "REQUIRED"}), "OPTIONAL")
    """Whether the users of the stack's own pool need a second factor, an authenticator app."""
    users_plan: str = _option("usersPlan", _one_of({"lite": "LITE", "essentials": "ESSENTIALS"}), "LITE")
    """Cognito's plan for the stack's own pool. Tally uses nothing that the dearer one adds."""
    page_hosts: tuple[str, ...] = _option("pageHosts", _hosts, ())
    """The hosts whose pages count; `*` alone means any host."""
    cors_origins: tuple[str, ...] = _option("corsOrigins", _all(_is_origin, "origins like https://example.com"), ("*",))
    domain_name: str = _option("domainName", _name, "")
    """The name that callers use. Without one they use the address that AWS gives."""
    certificate_arn: str = _option("certificateArn", _certificate, "")
    """Of the API's own name, in the region of the stack."""
    cdn: bool = _option("cdn", _yes_no, False)
    """Whether CloudFront and AWS WAF are before the API."""
    origin_name: str = _option("originName", _name, "")
    """The name of the API itself behind CloudFront."""
    cdn_certificate_arn: str = _option("cdnCertificateArn", _certificate, "")
    """Of `domain_name`, in EDGE_REGION. Without one `certificate_arn` serves both names."""
    # The bounds are AWS WAF's: https://docs.aws.amazon.com/waf/latest/APIReference/API_RateBasedStatement.html
    client_rate: int = _option("clientRate", _whole(10, 2_000_000_000), 2000)
    """Requests of one IP address in five minutes before it is refused. By default 6.7 a second: less than the lowest
    throttle of a route, which is 10."""
    edge_logs_days: int = _option("edgeLogs", _whole(1, 3650), 0)
    """For how many days CloudFront's access log is kept, which has the addresses of callers; 0: there is none."""
    cdn_client_certificate_arn: str = _option("cdnClientCertificateArn", _certificate, "")
    """The certificate that CloudFront presents to the API, in EDGE_REGION."""
    origin_trust_store: str = _option("originTrustStore", _like(_OBJECT, "s3://bucket/key"), "")
    """The S3 object with the authorities of such certificates, as PEM, in the region of the API. A live front door gets
    it in a deploy of its own, after CloudFront presents the certificate."""
    alarm_email: str = _option("alarmEmail", _email, "")
    """Who gets a mail when an alarm goes off, beside those who subscribe to the topic."""
    docs_url: str = _option("docsUrl", _like("https://[!-~]+", "https://… of the folder docs", _folder), "docs")
    """Where people read the pages of docs/, for the links in alarms. Without it they name the page in the checkout."""
    # Every on-demand table starts with the lowest, and AWS refuses less. The highest is far above any quota.
    warm_writes: int | None = _option("warmWrites", _whole(4000, 10**7), None)
    """Write units a second that counts and receipts take from the start."""
    warm_reads: int | None = _option("warmReads", _whole(12_000, 10**7), None)
    # At least 10: a new table's two streams have eight shards, each with an invocation of its own.
    reserved_concurrency: int | None = _option("reservedConcurrency", _whole(10, 10_000), None)
    """Invocations at once that are reserved for each stream consumer; the sweep then gets one."""
    # Callers may rely on 24 hours. The rollup keeps what is written alone for 8 days: a receipt must not outlive that.
    receipt_ttl_hours: int | None = _option("receiptTtlHours", _whole(24, 168), None)
    """How long a receipt lives, and so how long a retry is recognised; None: 24 hours."""
    snap_start: bool = _option("snapStart", _yes_no, None)
    """Whether the functions that callers wait for start from a snapshot, which AWS bills; None: not in dev."""
    canary: bool = _option("canary", _yes_no, None)
    """Whether a tenth of the calls goes to new code first, and back if it fails; None: not in dev."""
    throttle: float = _option("throttle", _like(r"1|0?\.[0-9]{1,3}", "a share up to 1, as 0.1", float), None)
    """The share of each route's throttle that its callers get, all together; None: all, but a tenth in dev."""
    tracing: str = _option("tracing", _one_of({which: which for which in ("callers", "all", "off")}), "off")
    """Which functions X-Ray traces: those that `callers` wait for, `all`, or none (`off`). It shows what Lambda itself
    knows of an invocation, and no call of DynamoDB: the log line of an answer has those."""
    log_sampling: float = _option(
        "logSampling", _like(r"0|1|0?\.[0-9]{1,6}|1\.0{1,6}", "a share from 0 to 1, as 0.05", float), None
    )
    """The share of the invocations that log their successes. Errors and refusals always are. None: all in dev."""
    likers_visible: Visible = _option(  # noqa: RUF009 (a member of an Enum does not change)
        "likersVisible", _one_of({visible.value: visible for visible in Visible}), Visible.ANYONE
    )
    """Who sees over HTTP which users like a post."""
    dead_letter_days: int = _option("deadLetterDays", _whole(1, 3650), 90)
    """A dead letter that nobody redrove expires after so many days."""
    series_days: int | None = _option("seriesDays", _whole(1, 36_500), None)
    """For how many days series are kept; None: for ever."""
    restored: str = _option("tables", _moments, "")
    """The moment to which the stack's tables were restored: `20261122T103000`; empty: they were never restored."""
    backup_to: str = _option("backupTo", _vault, "")
    """The vault of AWS Backup, in another region or account, that gets copies of the tables."""

    def __post_init__(self) -> None:
        """Choose by the stage where nothing is chosen."""
        dev = self.stage == DEV
        by_stage = {
            "snap_start": not dev,
            "canary": not dev,
            "throttle": DEV_THROTTLE if dev else 1,
            "log_sampling": 1 if dev else LOGGED_SHARE,
        }
        for name, value in by_stage.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)

    @property
    def keeps_data(self) -> bool:
        """Whether tables and user pool outlive the stack, and are protected from deletion."""
        return self.stage != DEV

    @property
    def url(self) -> str:
        """The address of the API for callers; empty if it has none of its own."""
        return f"https://{self.domain_name}" if self.domain_name else ""

    @property
    def api_name(self) -> str:
        """The domain of the API itself: behind a CDN not the one that callers use."""
        return self.origin_name or self.domain_name

    @property
    def region(self) -> str:
        """The region of a stack with a domain: API Gateway takes certificates from its own."""
        return self.certificate_arn.split(":")[3]

    @property
    def edge_certificate_arn(self) -> str:
        """The certificate of CloudFront: one can serve both names if the stack is in EDGE_REGION."""
        return self.cdn_certificate_arn or self.certificate_arn

    def check_region(self, region: str | None, account: str | None = None) -> None:
        """Refuse a region that is not the certificate's, has no snapshots, or loses its backups with itself. None: not
        known. Raises OptionsError."""
        if region in NO_SNAPSHOTS and self.snap_start:
            raise OptionsError(f"Lambda has no SnapStart in {region}: give snapStart=false")
        if region and self.certificate_arn and region != self.region:
            raise OptionsError(
                f"context certificateArn is of {self.region}, and this deploys to {region}: "
                "API Gateway takes only certificates of its own region"
            )
        if self.backup_to and self.backup_to.split(":")[3:5] == [region, account]:
            raise OptionsError(
                f"context backupTo is in {region} of account {account}, where this deploys to: what is lost with it"
                " would be lost with its copies; give a vault of another region or account"
            )

    @classmethod
    def from_context(cls, context: Mapping[str, Any]) -> Options:
        """Read and check the context. An empty value counts as missing. Raises OptionsError."""
        known = [each.metadata["name"] for each in fields(cls)]
        _refuse_unknown(context, known)
        given = {name: text for name in known if (text := _text(context, name))}
        _check_together(given)
        read = {each.name: (each.metadata["read"], each.metadata["name"]) for each in fields(cls)}
        values = {of: check(name, given[name]) for of, (check, name) in read.items() if name in given}
        values["restored"] = values.get("restored", {}).get(values.get("stage", DEV))
        made = cls(**{of: value for of, value in values.items() if value is not None})
        if made.cdn:
            _check_edge(made)
        return made


def _refuse_unknown(context: Mapping[str, Any], known: Iterable[str]) -> None:
    """A misspelt `-c Stage=prod` would deploy a stack without protection. CDK's own keys have `:` or `@`."""
    for name in sorted(context):
        if name not in known and ":" not in name and "@" not in name:
            raise OptionsError(f"context {name!r} is unknown: there are {', '.join(known)}")


def _text(context: Mapping[str, Any], name: str) -> str:
    value = context.get(name) or ""
    if not isinstance(value, str):
        raise OptionsError(f"context {name} is {value!r}: it must be text")
    return value.strip()


def _check_together(given: Mapping[str, str]) -> None:
    """Refuse an option without what it needs. `given`: the text of each."""
    pairs = (
        ("issuer", "audience", "neither for a Cognito user pool"),
        ("domainName", "certificateArn", "neither"),
    )
    for name in ("mfa", "usersPlan"):
        if name in given and "issuer" in given:
            raise OptionsError(f"context {name} is for the stack's own user pool: with issuer there is none")
    for one, other, or_ in pairs:
        if (one in given) != (other in given):
            raise OptionsError(f"context {one} and {other} go together: give both, or {or_}")
    if "originTrustStore" in given and "cdnClientCertificateArn" not in given:
        raise OptionsError(
            "context originTrustStore needs cdnClientCertificateArn: the API would ask for a certificate that"
            " CloudFront does not present"
        )
    if given.get("cdn") == "true":
        for name in ("domainName", "originName"):
            if name not in given:
                raise OptionsError(
                    f"context cdn needs {name}: without names of its own the API can be called around CloudFront"
                )
        if given["originName"] == given["domainName"]:
            raise OptionsError("context originName is domainName: the API needs a name that callers do not know")
    else:
        for name in (
            "originName",
            "cdnCertificateArn",
            "clientRate",
            "edgeLogs",
            "cdnClientCertificateArn",
            "originTrustStore",
        ):
            if name in given:
                raise OptionsError(f"context {name} is for CloudFront: it needs cdn=true")


def _check_edge(options: Options) -> None:
    """Refuse certificates that CloudFront does not take."""
    of_name = "cdnCertificateArn" if options.cdn_certificate_arn else "certificateArn"
    of_client = options.cdn_client_certificate_arn or options.edge_certificate_arn
    for name, arn in ((of_name, options.edge_certificate_arn), ("cdnClientCertificateArn", of_client)):
        partition, region = arn.split(":")[1], arn.split(":")[3]
        if partition != "aws":
            raise OptionsError(f"context cdn is true, and {name} is of the partition {partition}: cdn=true needs aws")
        if region != EDGE_REGION:
            instead = "; give one as cdnCertificateArn" if name == "certificateArn" else ""
            raise OptionsError(
                f"context {name} is of {region}: CloudFront takes only certificates of {EDGE_REGION}{instead}"
            )
