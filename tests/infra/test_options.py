"""The options of a deployment: a wrong one is one line and not a traceback."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from stacks.options import Options, OptionsError
from tests.infra.conftest import ROOT, Synthesize

BAD = [
    ({"stage": "Prod"}, "context stage is 'Prod'"),
    ({"stage": "a" * 17}, "context stage"),
    ({"stage": "pröd"}, "context stage"),
    ({"stage": 7}, "context stage is 7: it must be text"),
    ({"Stage": "prod"}, "context 'Stage' is unknown"),
    ({"pagehosts": "example.com"}, "context 'pagehosts' is unknown"),
    ({"issuer": "https://login.example.com"}, "issuer and audience go together"),
    ({"audience": "tally"}, "issuer and audience go together"),
    ({"issuer": "http://login.example.com", "audience": "tally"}, "only https://"),
    ({"issuer": "https://", "audience": "tally"}, "only https://"),
    ({"issuer": "https://[", "audience": "tally"}, "only https://"),
    ({"issuer": "https://login.example.com", "audience": ","}, "audience is ',': it names nobody"),
    ({"pageHosts": "https://example.com"}, "context pageHosts has 'https://example.com'"),
    ({"pageHosts": "example.com:8080"}, "context pageHosts has 'example.com:8080'"),
    ({"pageHosts": "*,example.com"}, "context pageHosts has '*'"),
    ({"corsOrigins": "example.com"}, "context corsOrigins has 'example.com'"),
    ({"corsOrigins": "https://example.com/"}, "context corsOrigins has 'https://example.com/'"),
    ({"corsOrigins": "https://["}, "context corsOrigins has 'https://['"),
    ({"budgetUsd": "20"}, "budgetUsd and budgetEmail go together"),
    ({"budgetUsd": "2.5", "budgetEmail": "a@example.com"}, "context budgetUsd is '2.5'"),
    ({"budgetUsd": "0", "budgetEmail": "a@example.com"}, "context budgetUsd is '0'"),
    ({"budgetUsd": "9" * 5000, "budgetEmail": "a@example.com"}, "context budgetUsd is '999"),
    ({"budgetUsd": "20", "budgetEmail": "me"}, "context budgetEmail is 'me'"),
    ({"alarmEmail": "me"}, "context alarmEmail is 'me'"),
    ({"settleSeconds": "300"}, "context settleSeconds is no option any more: a minute is judged once both consumers"),
    ({"Stage": "prod", "settleSeconds": ""}, "context settleSeconds is no option any more"),
    ({"reservedConcurrency": "9"}, "context reservedConcurrency is '9': it must be a whole number from 10 to 10000"),
    ({"reservedConcurrency": "on"}, "context reservedConcurrency is 'on'"),
    ({"reservedConcurrency": "10001"}, "context reservedConcurrency is '10001'"),
    ({"warmWrites": "9" * 5000}, "context warmWrites is '999"),
    ({"warmWrites": "3999"}, "context warmWrites is '3999': it must be a whole number from 4000 to 10000000"),
    ({"warmReads": "11999"}, "context warmReads is '11999': it must be a whole number from 12000 to 10000000"),
    ({"warmWrites": "-4000"}, "context warmWrites is '-4000'"),
    ({"warmReads": "12_000"}, "context warmReads is '12_000'"),
]


@pytest.mark.parametrize(("context", "message"), BAD)
def test_a_wrong_context_is_refused_in_one_line(context: dict[str, object], message: str) -> None:
    with pytest.raises(OptionsError) as refused:
        Options.from_context(context)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_an_empty_value_counts_as_missing() -> None:
    keys = ["stage", "issuer", "audience", "pageHosts", "corsOrigins", "budgetUsd", "budgetEmail"]
    keys += ["alarmEmail", "warmWrites", "warmReads", "reservedConcurrency"]
    assert Options.from_context(dict.fromkeys(keys, "")) == Options.from_context({}) == Options()


def test_cdks_own_context_is_not_refused() -> None:
    context = {"aws:cdk:bundling-stacks": [], "@aws-cdk/core:checkSecretUsage": True, "hosted-zone:account=1": {}}
    assert Options.from_context(context) == Options()


def test_only_dev_may_lose_its_data() -> None:
    assert not Options.from_context({"stage": "dev"}).keeps_data
    assert Options.from_context({"stage": "dev2"}).keeps_data


def test_any_host_must_be_asked_for() -> None:
    assert Options.from_context({}).page_hosts == ()
    assert Options.from_context({"pageHosts": "*"}).page_hosts == ("*",)


def test_the_app_ends_with_one_line_and_1() -> None:
    variables = {**os.environ, "CDK_CONTEXT_JSON": json.dumps({"stage": "PROD"})}
    run = subprocess.run([sys.executable, "app.py"], cwd=ROOT, env=variables, capture_output=True, text=True)
    assert run.returncode == 1
    assert run.stderr.splitlines() == [
        "tally: context stage is 'PROD': it must be a lower case letter, then up to 15 of a-z 0-9 -"
    ]


def test_the_page_of_operations_lists_every_option() -> None:
    with pytest.raises(OptionsError, match="there are ") as refused:
        Options.from_context({"unknown": "x"})
    known = str(refused.value).partition("there are ")[2].split(", ")
    rows = (ROOT / "docs" / "operations.md").read_text().partition("| context |")[2].partition("\n\n")[0]
    assert re.findall(r"`(\w+)`", "\n".join(row.split("|")[1] for row in rows.splitlines()[2:])) == known


def test_stages_are_stacks_of_their_own(synthesize: Synthesize) -> None:
    for stage in ("dev", "prod"):
        manifest = json.loads((synthesize(stage=stage).folder / "manifest.json").read_text())
        properties = manifest["artifacts"]["Tally"]["properties"]
        assert properties["stackName"] == f"Tally-{stage}"
        assert properties.get("terminationProtection", False) is (stage != "dev")


def test_a_budget_warns_before_and_when_it_is_passed(synthesize: Synthesize) -> None:
    assert not synthesize().of_type("AWS::Budgets::Budget")
    budget = synthesize(budgetUsd="20", budgetEmail="ops@example.com").only("AWS::Budgets::Budget")
    assert budget["Budget"]["BudgetLimit"] == {"Amount": 20, "Unit": "USD"}
    assert budget["Budget"]["TimeUnit"] == "MONTHLY"
    warnings = budget["NotificationsWithSubscribers"]
    assert [(each["Notification"]["NotificationType"], each["Notification"]["Threshold"]) for each in warnings] == [
        ("ACTUAL", 80),
        ("FORECASTED", 100),
    ]
    for each in warnings:
        assert each["Subscribers"] == [{"Address": "ops@example.com", "SubscriptionType": "EMAIL"}]
