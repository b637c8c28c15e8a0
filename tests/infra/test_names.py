"""The names in the template: one Tally keeps its names for ever, and two in one stack never share one."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from aws_cdk import App, Stack, Validations
from cdk_nag import AwsSolutionsChecks
from constructs import Construct

from app import LAMBDAS
from tally.cdk.bundling import Bundle
from tally.cdk.construct import Tally
from tally.cdk.options import Options
from tally.contract.declarations import Declarations
from tests.infra.conftest import UNBUNDLED, context_of_cdk_json
from tests.infra.template import Template

WITHOUT_CANARY = Options(stage="prod", canary=False)  # two with canaries pass the 500 resources of a stack
NAMED = ("Name", "AlarmName", "DashboardName", "Domain", "FunctionName", "TableName", "BucketName", "QueueName")


def synthesized(folder: Path, *paths: tuple[str, ...]) -> dict[str, Any]:
    """The template of a stack with a Tally under each of these paths. Raises if any rule is broken."""
    app = App(context={**context_of_cdk_json(), **UNBUNDLED}, outdir=str(folder), analytics_reporting=False)
    stack = Stack(app, "Tally", stack_name="Tally-prod")  # some logical ids have these in them
    declarations = Declarations.load(LAMBDAS / "counters.py")
    for path in paths:
        scope: Construct = stack
        for id_ in path[:-1]:
            scope = Construct(scope, id_)
        bundle = Bundle(LAMBDAS, declarations, WITHOUT_CANARY.likers_visible, kept_in=folder)
        Tally(scope, path[-1], counters=declarations, options=WITHOUT_CANARY, bundle=bundle)
    Validations.of(app).add_plugins(AwsSolutionsChecks(app))
    app.synth()
    found: dict[str, Any] = json.loads((folder / "Tally.template.json").read_text())
    return found


def names(resources: dict[str, Any]) -> list[str]:
    """The names that are unique in an account and region, with their kind."""
    return [
        f"{resource['Type']} {json.dumps(resource['Properties'][field])}"
        for resource in resources.values()
        if resource["Type"] in ("AWS::CloudWatch::Alarm", "AWS::CloudWatch::Dashboard", "AWS::Cognito::UserPoolDomain")
        for field in NAMED
        if field in resource["Properties"]
    ]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return synthesized(tmp_path_factory.mktemp("both"), ("Default",), ("Shop", "Likes"))


@pytest.fixture(scope="module")
def alone(prod: Template) -> dict[str, Any]:
    """The resources of one Tally."""
    return {id_: made for id_, made in prod.resources.items() if not id_.startswith("Canary")}


def test_two_tallys_in_one_stack_share_no_name(both: dict[str, Any], alone: dict[str, Any]) -> None:
    resources = both["Resources"]
    assert len(resources) == 2 * len(alone)
    found = names(resources)
    assert len(found) == len(set(found)) == 2 * len(names(alone)) > 20
    apis = [made["Properties"]["Name"] for made in resources.values() if made["Type"] == "AWS::ApiGatewayV2::Api"]
    assert sorted(apis) == ["Tally-prod", "Tally-prod-Shop-Likes"]


def test_logical_ids_follow_the_path_in_the_stack(both: dict[str, Any], alone: dict[str, Any], prod: Template) -> None:
    """A construct named `Default` leaves them as they are in a stack of Tally's own."""
    version = re.compile(r"(CurrentVersion[0-9A-F]{8})[0-9a-f]{32}$")  # its end is a hash of the function

    def stable(ids: Any) -> set[str]:
        return {version.sub(r"\1", id_) for id_ in ids}

    second = {id_ for id_ in both["Resources"] if id_.startswith("ShopLikes")}
    assert {"ShopLikesCountsTable", "ShopLikesUserPool", "ShopLikesDeadLetterBucket"} <= second
    assert stable(both["Resources"].keys() - second) == stable(alone)
    outputs = {id_ for id_ in both["Outputs"] if not id_.startswith("ShopLikes")}
    assert outputs == set(prod.outputs)


def test_nothing_of_one_tally_refers_to_the_other(both: dict[str, Any]) -> None:
    text = {id_: json.dumps(made) for id_, made in both["Resources"].items()}
    first = [id_ for id_ in text if not id_.startswith("ShopLikes")]
    assert not [id_ for id_ in first if '"ShopLikes' in text[id_]]
    for id_, made in text.items():
        if id_ not in first:
            assert not [other for other in first if f'"{other}"' in made], id_
