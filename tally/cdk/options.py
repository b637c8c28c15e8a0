"""The options of a deployment: the name, the check and the default of each.

Options come from the CDK context, `cdk deploy -c stage=prod -c pageHosts=example.com`, or from the arguments of a
construct, `Tally(self, "Tally", …, page_hosts=["example.com"])`. Messages name an option as the deployer did.
docs/reference.md lists them; docs/operate.md and docs/front-door.md say what to choose.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from enum import Enum
from typing import Any

from tally.api.operation import UserVisibility

from . import option_parsers as parse
from .option_parsers import OptionsError as OptionsError

DEV = "dev"
PROD_STAGE = "prod"  # a construct that keeps its data has the defaults of this stage; another has those of dev
STAGE, EDGE = "stage", "edge"
"""Values of `belongs_to`: an option that only the stack of a stage has, or the second stack, with CloudFront."""
LOG_SAMPLING_DEFAULT = 0.05  # the share of the invocations that log successes, outside dev
DEV_THROTTLE = 0.1  # a share of each route's throttle; low, because strangers can call a stage dev, too, and cost money
EDGE_REGION = "us-east-1"  # CloudFront takes certificates and web ACLs only from here
CLIENT_RATE_WINDOW_S = 300  # AWS WAF counts an address's requests in this time
# Regions of AWS without Lambda SnapStart (Taipei, New Zealand), on 2026-11-23:
# https://docs.aws.amazon.com/lambda/latest/dg/snapstart.html
REGIONS_WITHOUT_SNAP_START = ("ap-east-2", "ap-southeast-6")


def _option(read: parse.Parser, default: Any, belongs_to: str = "", name: str = "") -> Any:
    """Declares an option. `belongs_to`: "" if a construct takes it. `name`: in the context ("": in camel case)."""
    return field(default=default, metadata={"read": read, "belongs_to": belongs_to, "name": name})


@dataclass(frozen=True)
class Options:
    """The options of one deployment. "", () or None, and 0 days of `edge_logs`: the option is not given."""

    stage: str = _option(parse.stage, DEV, STAGE)
    """The end of the stack's name, without `aws`, `amazon` or `cognito`. Each stage but `dev` keeps its tables and
    users when the stack is deleted."""
    issuer: str = _option(parse.issuer, "")
    """The issuer of the tokens of callers who sign in. Without it the stack makes a Cognito user pool."""
    audience: tuple[str, ...] = _option(parse.audience, ())
    """The audiences of the issuer's tokens, between commas. Goes with `issuer`."""
    mfa: str = _option(parse.one_of({"optional": "OPTIONAL", "required": "REQUIRED"}), "OPTIONAL")
    """Whether users of the stack's own pool need an authenticator app: `optional` or `required`."""
    users_plan: str = _option(parse.one_of({"lite": "LITE", "essentials": "ESSENTIALS"}), "LITE")
    """Cognito's plan for the stack's own pool: `lite`, or `essentials` at nearly three times the price. Tally uses
    nothing that `essentials` adds."""
    one_user_per_mailbox: bool = _option(parse.yes_no, True)
    """Whether `Ana@` and `ana@` are one user of the stack's own pool. An existing pool cannot change this."""
    page_hosts: tuple[str, ...] = _option(parse.hosts, ())
    """The hosts whose pages count, between commas, up to 3,200 bytes. Visits of other pages get 403. `*` alone:
    any host."""
    cors_origins: tuple[str, ...] = _option(parse.origins, ("*",))
    """The origins that browsers may call from: `https://example.com`, never `*.example.com`. `*` alone: any origin."""
    domain_name: str = _option(parse.domain_name, "")
    """The name that callers use. Needs `certificate_arn`. Without a name AWS gives an address."""
    certificate_arn: str = _option(parse.certificate, "")
    """The certificate of the API's own name (`origin_name` with `cdn`, else `domain_name`), in the stack's region."""
    cdn: bool = _option(parse.yes_no, False, STAGE)
    """Whether CloudFront and AWS WAF are in front of the API, in a second stack."""
    origin_name: str = _option(parse.domain_name, "", EDGE)
    """With `cdn`: the name of the API itself, which only CloudFront uses."""
    cdn_certificate_arn: str = _option(parse.certificate, "", EDGE)
    """With `cdn`: the certificate of the domain, in us-east-1. Without it `certificate_arn` serves both names."""
    # The bounds are AWS WAF's: https://docs.aws.amazon.com/waf/latest/APIReference/API_RateBasedStatement.html
    client_rate: int = _option(parse.whole(10, 2_000_000_000), 2000, EDGE)
    """With `cdn`: how many requests AWS WAF lets an IP address send in five minutes, 10 to 2,000,000,000."""
    edge_logs: int = _option(parse.whole(1, 3650), 0, EDGE)
    """With `cdn`: the days for which CloudFront's access log is kept, 1 to 3,650. The log has callers' addresses.
    Without it: no log."""
    cdn_client_certificate_arn: str = _option(parse.certificate, "", EDGE)
    """With `cdn`: the certificate that CloudFront presents to the API, in us-east-1."""
    origin_trust_store: str = _option(parse.s3_object, "", EDGE)
    """With `cdn`: the S3 object with the authorities of `cdn_client_certificate_arn`, as PEM, in the API's region. The
    API then refuses everyone but CloudFront. Add it one deploy after the certificate."""
    alarm_email: str = _option(parse.email, "")
    """The address that gets a mail of each alarm. AWS first mails a link to confirm."""
    docs_url: str = _option(parse.folder_url, "docs")
    """The address of the folder docs/: `https://git.example.com/tally/docs`. Alarms and the console link there. Without
    it they name the file."""
    # Every on-demand table starts with the lower bound, and AWS refuses less. The upper bound is far above any quota.
    warm_writes: int | None = _option(parse.whole(4000, 10**7), None)
    """Write units a second that `counts` and `receipts` each take from the first moment, 4,000 to 10,000,000. AWS bills
    this once. A deploy cannot lower it."""
    warm_reads: int | None = _option(parse.whole(12_000, 10**7), None)
    """Read units a second, as `warm_writes`; 12,000 to 10,000,000."""
    max_writes: int | None = _option(parse.whole(100, 10**7), None)
    """The most write units a second that `counts` and `receipts` each take, 100 to 10,000,000. Without it: what AWS
    allows the account."""
    max_reads: int | None = _option(parse.whole(100, 10**7), None)
    """The most read units a second, as `max_writes`."""
    # At least 10: the two streams of a new stack have eight shards, each shard needs an invocation, and some are spare.
    reserved_concurrency: int | None = _option(parse.whole(10, 10_000), None)
    """Invocations at once that are reserved for each stream consumer, 10 to 10,000. The sweep gets one."""
    strangers_concurrency: int | None = _option(parse.whole(0, 10_000), None)
    """The most invocations at once of all functions that serve strangers, up to 10,000. `0`: no ceiling. Without it:
    what the throttles of their routes need; in `dev` no ceiling."""
    # Callers may rely on 24 hours. A counter whose keys must live for longer than a week declares `receipt_days`.
    receipt_ttl_hours: int | None = _option(parse.whole(24, 168), None)
    """The hours for which a retry with the same key is recognised, 24 to 168. Without it: 24. A counter's
    `receipt_days` overrides it."""
    snap_start: bool = _option(parse.yes_no, None)
    """Whether busy functions (a route allows 500 requests a second) start from snapshots, at about $2 a month each.
    Lambda has no snapshots in Taipei and New Zealand."""
    canary: bool = _option(parse.yes_no, None)
    """Whether new code of a busy function first gets a tenth of the calls. If it fails, the old code gets all."""
    throttle: float = _option(parse.matching(r"1|0?\.(?!0+$)[0-9]{1,3}", "a share up to 1, as 0.1", float), None)
    """The share of each route's throttle that its callers get, up to 1."""
    tracing: str = _option(parse.one_of({which: which for which in ("callers", "all", "off")}), "off")
    """The functions that X-Ray traces: those that `callers` wait for, `all`, or none (`off`). A trace does not show
    calls of DynamoDB, but the log does."""
    log_sampling: float = _option(parse.share, None)
    """The share of invocations that log their successes. Errors and refusals are always logged."""
    likers_visible: UserVisibility = _option(  # noqa: RUF009 (a member of an Enum does not change)
        parse.one_of({visible.value: visible for visible in UserVisibility}), UserVisibility.ANYONE
    )
    """Who may list children, such as likes, if the counter has `lists="anyone"`: `anyone`, `signedIn` or `nobody`."""
    dead_letter_days: int = _option(parse.whole(1, 3650), 90)
    """The days after which a dead letter expires, 1 to 3,650."""
    series_days: int | None = _option(parse.whole(1, 36_500), None)
    """The days for which series are kept, 1 to 36,500. Without it: for ever."""
    spot_check_units: int = _option(parse.whole(0, 10_000), 100)
    """How many read and write units of your tables and Tally's a spot check of items may take, every few minutes; up to
    10,000. `0`: no spot checks."""
    event_bus: str = _option(parse.event_bus, "")
    """The ARN of the EventBridge bus for events of thresholds. Without it Tally makes a bus if a counter has
    thresholds."""
    restored: str = _option(parse.restored_times, "", name="tables")
    """The restored tables of the stack, as `tally restore` prints them: `Tally-prod-20261122T103000`. One name for
    each stage, between commas. For a construct: `20261122T103000`."""
    backup_to: str = _option(parse.vault, "")
    """The ARN of a vault of AWS Backup, in another region or account, for a daily copy of the tables."""

    def __post_init__(self) -> None:
        """Fill in the defaults that depend on the stage."""
        dev = self.stage == DEV
        by_stage = {
            "snap_start": not dev,
            "canary": not dev,
            "throttle": DEV_THROTTLE if dev else 1,
            "log_sampling": 1 if dev else LOG_SAMPLING_DEFAULT,
        }
        for name, value in by_stage.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)

    @property
    def keeps_data(self) -> bool:
        """Whether tables and user pool outlive the stack and are protected from deletion."""
        return self.stage != DEV

    @property
    def url(self) -> str:
        """The address of the API for callers; empty if AWS gives the address."""
        return f"https://{self.domain_name}" if self.domain_name else ""

    @property
    def api_name(self) -> str:
        """The domain of the API itself. Behind a CDN, callers use another domain."""
        return self.origin_name or self.domain_name

    @property
    def region(self) -> str:
        """The region of a stack with a domain: its certificate's region, because API Gateway takes no other."""
        return self.certificate_arn.split(":")[3]

    @property
    def edge_certificate_arn(self) -> str:
        """The certificate that CloudFront shows callers. In EDGE_REGION, one certificate can serve both names."""
        return self.cdn_certificate_arn or self.certificate_arn

    def check_region(self, region: str | None, account: str | None = None) -> None:
        """Raise OptionsError if the region lacks snapshots that are wanted, if the certificate is of another region, or
        if the vault is in the same region and account. None: not known, and not checked."""
        if region in REGIONS_WITHOUT_SNAP_START and self.snap_start:
            raise OptionsError(f"Lambda has no SnapStart in {region}: give snapStart=false")
        if region and self.certificate_arn and region != self.region:
            raise OptionsError(
                f"context certificateArn is of {self.region}, and this deploys to {region}: "
                "API Gateway takes only certificates of its own region"
            )
        if self.backup_to and self.backup_to.split(":")[3:5] == [region, account]:  # the two parts of its ARN
            raise OptionsError(
                f"context backupTo is in {region} of account {account}, where this deploys to: the copies would be"
                " lost with the tables; give a vault of another region or account"
            )

    @classmethod
    def from_context(cls, context: Mapping[str, object]) -> Options:
        """Read and check the context, without CDK's own keys, which have `:` or `@`. Raises OptionsError."""
        given = {name: value for name, value in context.items() if ":" not in name and "@" not in name}
        given_names = {each.name: _context_name(each) for each in fields(cls)}
        try:
            return cls._parse(given, given_names, "{!r} is unknown: there are")
        except OptionsError as error:
            raise OptionsError(f"context {error}") from None

    @classmethod
    def from_arguments(cls, given: Mapping[str, object], *, keep_data: bool) -> Options:
        """Read and check the arguments of a construct. Raises OptionsError."""
        stage = PROD_STAGE if keep_data else DEV
        given_names = {each.name: each.name for each in fields(cls) if not each.metadata["belongs_to"]}
        if given.get("restored"):  # the parser expects times as in a context, where each has the name of its stage
            given = {**given, "restored": f"Tally-{stage}-{given['restored']}"}
        return cls._parse(given, given_names, "{} is not an option of Tally: there are keep_data,", stage=stage)

    @classmethod
    def _parse(
        cls, given: Mapping[str, object], given_names: Mapping[str, str], unknown_message: str, **fixed: str
    ) -> Options:
        """Read options. An empty value counts as missing.

        `given_names`: the name that the deployer uses for each field. `unknown_message`: the error for another name.
        `fixed`: the texts of options that the deployer cannot give.
        """
        # If a misspelt `Stage` were ignored, `Stage=prod` would deploy the stage dev, which protects no data.
        for name in sorted(given.keys() - set(given_names.values())):
            raise OptionsError(f"{unknown_message.format(name)} {', '.join(given_names.values())}")
        texts = fixed | {option: text for option, name in given_names.items() if (text := _text(name, given.get(name)))}
        _check_combinations(texts, given_names)
        values: dict[str, Any] = {}
        for option in fields(cls):
            try:
                if option.name in texts:
                    values[option.name] = option.metadata["read"](texts[option.name])
            except OptionsError as error:
                raise OptionsError(f"{given_names[option.name]} {error}") from None
        values["restored"] = values.get("restored", {}).get(values.get("stage", DEV))  # the parsed times are by stage
        options = cls(**{name: value for name, value in values.items() if value is not None})
        for warm, most in (("warm_writes", "max_writes"), ("warm_reads", "max_reads")):
            if (values.get(warm) or 0) > (values.get(most) or 10**7):
                raise OptionsError(
                    f"{given_names[warm]} is {values[warm]}, and {given_names[most]} is {values[most]}: a table is not"
                    f" made ready for more than it may take. Give at most {values[most]} for {given_names[warm]}"
                )
        if options.cdn:
            _check_edge(options, given_names)
        return options


def _context_name(option: Field[Any]) -> str:
    """Returns the option's name in the context: `pageHosts` for `page_hosts`."""
    first, *others = option.name.split("_")
    return option.metadata["name"] or "".join((first, *(word.capitalize() for word in others)))


def _text(name: str, value: object) -> str:
    """Returns a value as the text that `-c` would give, which parsers take."""
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case Enum():
            return str(value.value)
        case int() | float():
            return f"{value:.6f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
        case str():
            return value.strip()
        case list() | tuple() if all(isinstance(entry, str) for entry in value):
            return ",".join(value)
    raise OptionsError(f"{name} is {value!r}: it must be text, a number, a boolean, or a list of texts")


def _check_combinations(given: Mapping[str, str], given_names: Mapping[str, str]) -> None:
    """Refuse an option without the option that it needs. `given`: the text of each option."""
    pairs = (("issuer", "audience", "neither for a Cognito user pool"), ("domain_name", "certificate_arn", "neither"))
    for name in ("mfa", "users_plan", "one_user_per_mailbox"):
        if name in given and "issuer" in given:
            why = "is for the stack's own user pool, which a stack with issuer does not have"
            raise OptionsError(f"{given_names[name]} {why}")
    for one, other, instead in pairs:
        if (one in given) != (other in given):
            raise OptionsError(f"{given_names[one]} and {given_names[other]} go together: give both, or {instead}")
    if "origin_trust_store" in given and "cdn_client_certificate_arn" not in given:
        raise OptionsError(
            f"{given_names['origin_trust_store']} needs {given_names['cdn_client_certificate_arn']}: the API would ask"
            " for a certificate that CloudFront does not present"
        )
    if given.get("cdn") != "true":
        for option in fields(Options):
            if option.metadata["belongs_to"] == EDGE and option.name in given:
                raise OptionsError(f"{given_names[option.name]} is for CloudFront: it needs cdn=true")
        return
    for name in ("domain_name", "origin_name"):
        if name not in given:
            why = "without names of its own the API can be called around CloudFront"
            raise OptionsError(f"cdn needs {given_names[name]}: {why}")
    if given["origin_name"] == given["domain_name"]:
        equal = f"{given_names['origin_name']} is {given_names['domain_name']}"
        raise OptionsError(f"{equal}: the API needs a name that callers do not know")


def _check_edge(options: Options, given_names: Mapping[str, str]) -> None:
    """Refuse certificates that CloudFront refuses."""
    server_option = "cdn_certificate_arn" if options.cdn_certificate_arn else "certificate_arn"
    client_arn = options.cdn_client_certificate_arn or options.edge_certificate_arn  # none: the server's, checked twice
    for option, arn in ((server_option, options.edge_certificate_arn), ("cdn_client_certificate_arn", client_arn)):
        name, partition, region = given_names[option], arn.split(":")[1], arn.split(":")[3]
        if partition != "aws":
            raise OptionsError(f"cdn is true, and {name} is of the partition {partition}: cdn=true needs aws")
        if region != EDGE_REGION:
            instead = f"; give one as {given_names['cdn_certificate_arn']}" if option == "certificate_arn" else ""
            raise OptionsError(f"{name} is of {region}: CloudFront takes only certificates of {EDGE_REGION}{instead}")
