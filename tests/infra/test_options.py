"""The options of a deployment. An invalid option gives an error of one line, and no traceback."""

from __future__ import annotations

import json

import pytest

import app
from app import build
from tally.cdk.options import Options, OptionsError
from tests.infra.conftest import CERTIFICATE, EDGE_CERTIFICATE, VAULT, Synthesize

DOMAIN = {"domainName": "api.example.com", "certificateArn": CERTIFICATE}
CDN = {**DOMAIN, "cdn": "true", "originName": "o-7f3a9c21.example.com", "cdnCertificateArn": EDGE_CERTIFICATE}
MUTUAL_TLS = {**CDN, "cdnClientCertificateArn": EDGE_CERTIFICATE, "originTrustStore": "s3://bucket/ca.pem"}
INVALID_ORIGINS = (
    "https://example.com/", "https://Example.com", "https://example.com:443", "http://example.com:80",
    "https://*.example.com", "https://ann@example.com", "https://exa mple.com", "https://b\u00fccher.example",
)  # fmt: skip
INVALID_CONTEXTS = [
    ({"stage": "Prod"}, "context stage is 'Prod'"),
    ({"stage": "aws-test"}, "context stage is 'aws-test': Cognito refuses a domain with 'aws' in it"),
    ({"receiptTtlHours": "23"}, "context receiptTtlHours is '23': it must be a whole number from 24 to 168"),
    ({"receiptTtlHours": "169"}, "context receiptTtlHours is '169'"),
    ({"Stage": "prod"}, "context 'Stage' is unknown: there are stage, "),
    ({"issuer": "https://login.example.com"}, "issuer and audience go together"),
    ({"issuer": "http://login.example.com", "audience": "tally"}, "only https://"),
    ({"issuer": "https://login.example.com", "audience": ","}, "audience is ',': give at least one audience"),
    ({"pageHosts": "*,example.com"}, "context pageHosts has '*'"),
    (
        {"pageHosts": ",".join(f"shop-{number:03}.example-company.co.uk" for number in range(120))},
        "context pageHosts has 120 hosts of 3719 bytes together: Lambda takes 3200",
    ),
    *(
        ({"corsOrigins": f"http://localhost:3000,{other}"}, f"context corsOrigins has '{other}': give origins like")
        for other in INVALID_ORIGINS
    ),
    ({"mfa": "on"}, "context mfa is 'on': it must be one of optional, required"),
    ({"mfa": "required", "issuer": "https://a.example", "audience": "b"}, "mfa is for the stack's own user pool"),
    ({"alarmEmail": "me"}, "context alarmEmail is 'me': it must be a mail address"),
    ({"budgetUsd": "20"}, "context 'budgetUsd' is unknown: there are stage, "),
    ({"reservedConcurrency": "9"}, "context reservedConcurrency is '9': it must be a whole number from 10 to 10000"),
    ({"warmWrites": "3999"}, "context warmWrites is '3999': it must be a whole number from 4000 to 10000000"),
    ({"tables": "Tally-prod-counts"}, "context tables has 'Tally-prod-counts': give what `tally restore` prints"),
    ({"tables": "Tally-dev-20261122T103000,Tally-dev-20261122T103001"}, "2 moments for the stage dev: give one"),
    ({"backupTo": "tally"}, "backupTo is 'tally': it must be arn:aws:backup:<region>:<account>:backup-vault:<name>"),
    ({"backupTo": VAULT.replace("backup-vault", "recovery-point")}, "context backupTo is 'arn:aws:backup:"),
    ({"throttle": "0"}, "context throttle is '0': it must be a share up to 1, as 0.1"),
    ({"throttle": "0.00"}, "context throttle is '0.00': it must be a share up to 1, as 0.1"),
    ({"logSampling": "nan"}, "context logSampling is 'nan'"),
    ({"likersVisible": "friends"}, "likersVisible is 'friends': it must be one of anyone, signedIn, nobody"),
    ({"seriesDays": "0"}, "context seriesDays is '0': it must be a whole number from 1 to 36500"),
    ({"domainName": "api.example.com"}, "domainName and certificateArn go together"),
    (DOMAIN | {"domainName": "API.example.com"}, "domainName is 'API.example.com': it must be a name like"),
    (DOMAIN | {"certificateArn": "arn:aws:iam::123456789012:role/x"}, "certificateArn is 'arn:aws:iam"),
    (DOMAIN | {"originName": "o.example.com"}, "originName is for CloudFront: it needs cdn=true"),
    (DOMAIN | {"edgeLogs": "30"}, "edgeLogs is for CloudFront: it needs cdn=true"),
    (DOMAIN | {"cdn": "false", "clientRate": "500"}, "clientRate is for CloudFront: it needs cdn=true"),
    ({"cdn": "true"}, "cdn needs domainName: without names of its own the API can be called around"),
    (DOMAIN | {"cdn": "true"}, "cdn needs originName"),
    (CDN | {"originName": "api.example.com"}, "originName is domainName: the API needs a name that callers do not"),
    (
        CDN | {"cdnCertificateArn": ""},
        "certificateArn is of eu-west-1: CloudFront takes only certificates of us-east-1",
    ),
    (CDN | {"cdnCertificateArn": CERTIFICATE}, "cdnCertificateArn is of eu-west-1: CloudFront takes only"),
    (
        CDN | {"cdnCertificateArn": EDGE_CERTIFICATE.replace("aws", "aws-cn", 1)},
        "cdn is true, and cdnCertificateArn is of the partition aws-cn",
    ),
    (
        CDN | {"originTrustStore": "s3://bucket/ca.pem"},
        "originTrustStore needs cdnClientCertificateArn: the API would ask",
    ),
    ({"maxWrites": "99"}, "context maxWrites is '99': it must be a whole number from 100 to 10000000"),
    ({"warmWrites": "5000", "maxWrites": "4000"}, "context warmWrites is 5000, and maxWrites is 4000: a table is not"),
    ({"warmReads": "13000", "maxReads": "12999"}, "context warmReads is 13000, and maxReads is 12999"),
    ({"strangersConcurrency": "10001"}, "strangersConcurrency is '10001': it must be a whole number from 0 to 10000"),
    ({"spotCheckUnits": "00"}, "spotCheckUnits is '00': it must be a whole number from 0 to 10000"),
    ({"docsUrl": "docs"}, "context docsUrl is 'docs': it must be https://"),
    (
        MUTUAL_TLS | {"originTrustStore": "bucket/ca.pem"},
        "originTrustStore is 'bucket/ca.pem': it must be s3://bucket/key",
    ),
    (MUTUAL_TLS | {"cdnClientCertificateArn": CERTIFICATE}, "cdnClientCertificateArn is of eu-west-1"),
]


@pytest.mark.parametrize(("context", "message"), INVALID_CONTEXTS)
def test_an_invalid_context_is_refused_in_one_line(context: dict[str, object], message: str) -> None:
    with pytest.raises(OptionsError) as refused:
        Options.from_context(context)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def option_names() -> list[str]:
    """Returns the names of all options, which the error about an unknown option lists."""
    with pytest.raises(OptionsError, match="there are ") as refused:
        Options.from_context({"unknown": "x"})
    return str(refused.value).partition("there are ")[2].split(", ")


def test_an_empty_value_counts_as_missing() -> None:
    assert Options.from_context(dict.fromkeys(option_names(), "")) == Options.from_context({}) == Options()


def test_cdk_json_may_have_booleans_numbers_and_lists() -> None:
    values = {
        "snapStart": False, "canary": True, "warmWrites": 4000, "logSampling": 0, "pageHosts": ["a.example", "b.org"],
    }  # fmt: skip
    texts = {
        "snapStart": "false", "canary": "true", "warmWrites": "4000", "logSampling": "0",
        "pageHosts": "a.example,b.org",
    }  # fmt: skip
    assert Options.from_context(values) == Options.from_context(texts)


def test_zero_is_a_number_where_it_turns_something_off() -> None:
    options = Options.from_context({"spotCheckUnits": "0", "strangersConcurrency": 0})
    assert (options.spot_check_units, options.strangers_concurrency) == (0, 0)


def test_origins_keep_their_spelling() -> None:
    origins = ("https://example.com", "http://localhost:8080", "http://[::1]:443", "https://a.example:80", "https://*")
    assert Options.from_context({"corsOrigins": ",".join(origins)}).cors_origins == origins


def test_a_host_of_pages_may_have_an_underscore() -> None:
    hosts = Options.from_context({"pageHosts": "My_shop.example.com,_a.b_"}).page_hosts
    assert hosts == ("my_shop.example.com", "_a.b_")


def test_the_context_keys_of_cdk_are_ignored() -> None:
    context = {"aws:cdk:bundling-stacks": [], "@aws-cdk/core:checkSecretUsage": True, "hosted-zone:account=1": {}}
    assert Options.from_context(context) == Options()


@pytest.mark.parametrize("region", ["ap-east-2", "ap-southeast-6"])
def test_a_region_without_snapshots_is_refused_if_functions_start_from_snapshots(region: str) -> None:
    with pytest.raises(OptionsError, match=f"Lambda has no SnapStart in {region}: give snapStart=false"):
        Options.from_context({"stage": "prod"}).check_region(region)
    for context in ({}, {"stage": "prod", "snapStart": "false"}):
        Options.from_context(context).check_region(region)
    Options.from_context({"stage": "prod"}).check_region("eu-west-1")


def test_a_backup_vault_in_the_region_and_account_of_the_tables_is_refused() -> None:
    """One disaster could destroy both the vault and the tables. A vault in another region or account is allowed."""
    options = Options.from_context({"backupTo": VAULT})
    with pytest.raises(OptionsError, match="context backupTo is in eu-central-1 of account 210987654321") as refused:
        options.check_region("eu-central-1", "210987654321")
    assert "\n" not in str(refused.value)
    options.check_region("eu-central-1", "123456789012")
    options.check_region("eu-west-1", "210987654321")
    options.check_region("eu-central-1")  # the account, or the region, is not known
    options.check_region(None)


def test_the_app_refuses_a_vault_in_the_region_and_account_that_cdk_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """`make deploy` makes the same check before it synthesizes."""
    monkeypatch.setenv("CDK_DEFAULT_REGION", "eu-central-1")
    monkeypatch.setenv("CDK_DEFAULT_ACCOUNT", "210987654321")
    with pytest.raises(OptionsError, match="context backupTo is in eu-central-1"):
        build({"backupTo": VAULT})


def test_every_stage_but_dev_keeps_its_data_when_its_stack_is_deleted() -> None:
    assert not Options.from_context({"stage": "dev"}).keeps_data
    assert Options.from_context({"stage": "dev2"}).keeps_data


def test_each_stage_finds_its_own_restored_tables() -> None:
    """All stages share `cdk.json`, and the name of one stage may be the beginning of another name."""
    tables = {"tables": "Tally-prod-20261122T103000,Tally-prod-eu-20261001T000000"}
    restored = {
        stage: Options.from_context({"stage": stage, **tables}).restored for stage in ("prod", "prod-eu", "dev")
    }
    assert restored == {"prod": "20261122T103000", "prod-eu": "20261001T000000", "dev": ""}


def test_the_app_ends_with_an_error_of_one_line_and_status_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(app, "build", lambda: build({"stage": "PROD"}))
    assert app.main() == 1
    assert capsys.readouterr().err.splitlines() == [
        "tally: context stage is 'PROD': it must be a lower case letter, then up to 15 of a-z 0-9 -"
    ]


def test_each_stage_has_its_own_stack_and_only_dev_lacks_termination_protection(synthesize: Synthesize) -> None:
    for stage in ("dev", "prod"):
        manifest = json.loads((synthesize(stage=stage).folder / "manifest.json").read_text())
        properties = manifest["artifacts"]["Tally"]["properties"]
        assert properties["stackName"] == f"Tally-{stage}"
        assert properties.get("terminationProtection", False) is (stage != "dev")
