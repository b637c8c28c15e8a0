"""The construct in a team's stack: its arguments, its grants, and its logical ids that must never change."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aws_cdk import App, Stack
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from constructs import Construct

from app import LAMBDAS
from tally.cdk import OptionsError, Tally
from tally.cdk.options import Options
from tally.client import FUNCTIONS
from tally.contract.declarations import Declarations
from tally.transact import Transactions
from tests.infra.conftest import UNBUNDLED
from tests.infra.template import as_list

COUNTERS = LAMBDAS / "counters.py"
OMITTED_COUNTERS = ("hearts", "readers", "ticket")
PERMANENT_IDS = Path(__file__).with_name("permanent_logical_ids.json")
# The types whose data is lost, or whose callers fail, if a logical id changes. Only a person edits PERMANENT_IDS.
PERMANENT_TYPES = (
    "AWS::DynamoDB::", "AWS::S3::Bucket", "AWS::Cognito::UserPool", "AWS::ApiGatewayV2::Api", "AWS::Lambda::Alias",
    "AWS::SQS::Queue", "AWS::SNS::Topic",
)  # fmt: skip


class Shop(Stack):
    """A team's stack with two constructs. A function counts with both, another commits, and a role increments."""

    def __init__(self, app: App) -> None:
        super().__init__(app, "Shop")
        self.tally = Tally(self, "Tally", counters=COUNTERS, page_hosts=["example.com"], canary=False)
        # The second construct has fewer counters, because a stack may have at most 500 resources.
        declarations = Declarations.load(COUNTERS)
        counters = {name: counter for name, counter in declarations.counters.items() if name not in OMITTED_COUNTERS}
        few = replace(declarations, counters=counters)
        self.polls = Tally(Construct(self, "Old"), "Polls", counters=few, keep_data=False, receipt_ttl_hours=48)
        self.checkout = function(self, "Checkout")
        self.tally.grant_count(self.checkout)
        self.polls.grant_count(self.checkout, variable="POLLS_FUNCTIONS")
        self.worker = iam.Role(self, "Worker", assumed_by=iam.ServicePrincipal("ecs-tasks.amazonaws.com"))
        for _ in range(2):  # a repeated grant adds nothing
            self.tally.grant(self.worker, ["increments"])  # the name of a function
            self.tally.grant_count(self.checkout)
        self.seller = function(self, "Seller")
        self.tally.grant_transact(self.seller, ["stock"])
        self.tally.grant_transact(self.seller, ["plays", "usage"])  # adds to the counters of the first grant
        self.polls.grant_transact(self.seller, "usage", variable="POLLS_TRANSACT")


def function(stack: Stack, id: str) -> lambda_.Function:
    code = lambda_.Code.from_inline("def handler(event, context): ...")
    return lambda_.Function(stack, id, runtime=lambda_.Runtime.PYTHON_3_14, code=code, handler="index.handler")


def app_in(folder: Path) -> App:
    return App(outdir=str(folder), context=UNBUNDLED, analytics_reporting=False)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    app = app_in(tmp_path_factory.mktemp("shop"))
    shop = Shop(app)
    app.synth()
    return shop


@pytest.fixture(scope="module")
def template(shop: Shop) -> dict[str, Any]:
    folder = Path(shop.node.root.outdir)  # type: ignore[attr-defined]
    content: dict[str, Any] = json.loads((folder / "Shop.template.json").read_text())
    return content


def test_resources_that_must_never_be_replaced_have_the_listed_logical_ids(template: dict[str, Any]) -> None:
    """A changed id means a new, empty table, or a name that no caller finds."""
    types = {id_: resource["Type"] for id_, resource in template["Resources"].items() if id_.startswith("Tally")}
    permanent = {id_: type_ for id_, type_ in types.items() if type_.startswith(PERMANENT_TYPES)}
    outputs = sorted(id_ for id_ in template["Outputs"] if id_.startswith("Tally"))
    assert json.loads(PERMANENT_IDS.read_text()) == {"resources": dict(sorted(permanent.items())), "outputs": outputs}
    for table in ("CountsTable", "ReceiptsTable", "LedgerTable"):
        assert template["Resources"][f"Tally{table}"]["DeletionPolicy"] == "Retain"
        assert template["Resources"][f"OldPolls{table}"]["DeletionPolicy"] == "Delete", "keep_data=False"


def test_a_function_may_count_with_two_constructs(shop: Shop, template: dict[str, Any]) -> None:
    [checkout] = [
        resource
        for id_, resource in template["Resources"].items()
        if id_.startswith("Checkout") and "Code" in resource["Properties"]
    ]
    variables = checkout["Properties"]["Environment"]["Variables"]
    assert set(variables) == {"TALLY_FUNCTIONS", "POLLS_FUNCTIONS"}
    for variable, tally in (("TALLY_FUNCTIONS", shop.tally), ("POLLS_FUNCTIONS", shop.polls)):
        text = json.dumps(variables[variable])
        assert set(FUNCTIONS) <= set(tally.functions)
        assert all(f'\\"{name}\\"' in text for name in FUNCTIONS)
    allowed = invocable(template, "Checkout")
    assert len(allowed) == 2 * len(shop.tally.functions)
    assert all("Live" in target for target in allowed)


def test_a_function_that_commits_transactions_may_write_only_its_granted_counters_receipts_and_holds(
    shop: Shop, template: dict[str, Any]
) -> None:
    allowed = [
        (statement["Resource"]["Fn::GetAtt"][0], as_list(statement["Action"]), statement["Condition"])
        for resource in template["Resources"].values()
        if resource["Type"] == "AWS::IAM::Policy"
        and resource["Properties"]["PolicyName"].startswith("SellerServiceRole")
        for statement in resource["Properties"]["PolicyDocument"]["Statement"]
    ]
    rights = {
        (table, action, prefix)
        for table, actions, condition in allowed
        for action in actions
        for prefix in as_list(condition["ForAllValues:StringLike"]["dynamodb:LeadingKeys"])
    }
    update, put = "dynamodb:UpdateItem", "dynamodb:PutItem"
    prefixes = ("ITEM#*", "VID#*", "USER#*")  # of stock, plays and usage
    hold_actions = (put, "dynamodb:Query", "dynamodb:DeleteItem")
    assert rights == {
        *(("TallyCountsTable", update, prefix) for prefix in prefixes),
        ("OldPollsCountsTable", update, "USER#*"),
        *((f"{tally}ReceiptsTable", put, "tally#*") for tally in ("Tally", "OldPolls")),
        *(("TallyLedgerTable", action, "HOLDS#*") for action in hold_actions),
    }


def test_a_function_that_changes_counters_goes_live_after_the_consumers_and_has_the_deployed_settings(
    shop: Shop, template: dict[str, Any]
) -> None:
    [seller] = [
        resource
        for id_, resource in template["Resources"].items()
        if id_.startswith("Seller") and "Code" in resource["Properties"]
    ]
    dependencies = set(seller["DependsOn"])
    for tally in ("Tally", "OldPolls"):
        mappings = [
            id_
            for id_, resource in template["Resources"].items()
            if id_.startswith(tally) and resource["Type"] == "AWS::Lambda::EventSourceMapping"
        ]
        assert set(mappings) <= dependencies
        assert len(mappings) == 4, "the rollup and the bookkeeper read two streams each"
    deployed = {}
    for variable, value in seller["Properties"]["Environment"]["Variables"].items():
        text = "".join(part if isinstance(part, str) else part["Ref"] for part in value["Fn::Join"][1])
        assert len(text) < 1000, "the variables of a function have 4 KB in all"
        transactions = Transactions.from_environment({variable: text}, caller="seller", variable=variable)
        settings = transactions._store.settings
        deployed[variable] = (settings.counts_table, settings.receipt_ttl_s // 3600, transactions._counters)
    declared = shop.tally._declarations.counters
    assert deployed == {
        "TALLY_TRANSACT": ("TallyCountsTable", 24, {name: declared[name] for name in ("stock", "plays", "usage")}),
        "POLLS_TRANSACT": ("OldPollsCountsTable", 48, {"usage": declared["usage"]}),
    }


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["stock", "hits"], "grant_transact got 'hits', which cannot be part of a batch: give some of "),
        (["likes"], "got 'likes', which cannot"),
        (["ticket"], "got 'ticket', which cannot"),
        (["visits"], "got 'visits', which cannot"),
        ([], "grant_transact got no counter: give some of "),
    ],
)
def test_a_grant_refuses_a_counter_that_cannot_be_part_of_a_batch(shop: Shop, names: list[str], message: str) -> None:
    with pytest.raises(OptionsError, match=message):
        shop.tally.grant_transact(shop.checkout, names)


def test_a_role_may_invoke_only_the_function_of_its_grant(template: dict[str, Any]) -> None:
    [target] = invocable(template, "Worker")
    assert target.startswith("TallyFunctionsIncrementsLive")


def invocable(template: dict[str, Any], role: str) -> list[str]:
    """Returns the logical ids of the aliases that the policies of a role allow it to invoke."""
    statements = [
        statement
        for id_, resource in template["Resources"].items()
        if id_.startswith(role) and resource["Type"] == "AWS::IAM::Policy"
        for statement in resource["Properties"]["PolicyDocument"]["Statement"]
        if statement["Action"] == "lambda:InvokeFunction"
    ]
    return [target["Ref"] for statement in statements for target in as_list(statement["Resource"])]


def test_a_grant_refuses_a_variable_that_another_construct_has_set_and_an_unknown_function(shop: Shop) -> None:
    with pytest.raises(OptionsError, match=r"Shop/Checkout already counts with another Tally by TALLY_FUNCTIONS: give"):
        shop.polls.grant_count(shop.checkout)
    with pytest.raises(OptionsError, match=r"Shop/Seller already counts with another Tally by TALLY_TRANSACT: give"):
        shop.polls.grant_transact(shop.seller, ["stock"])
    with pytest.raises(OptionsError, match="Tally has no function 'plays': give some of "):
        shop.tally.grant(shop.worker, ["plays"])


def test_two_constructs_in_one_stack_share_no_name(template: dict[str, Any]) -> None:
    """The alarms, dashboards, sign-in domains and APIs of the constructs differ."""
    resources = template["Resources"].values()
    names = [
        (resource["Type"], json.dumps(resource["Properties"][field]))
        for resource in resources
        for field in ("AlarmName", "DashboardName", "Domain")
        if resource["Type"].startswith(("AWS::CloudWatch::", "AWS::Cognito::")) and field in resource["Properties"]
    ]
    assert len(names) == len(set(names)) > 40
    apis = [resource for resource in resources if resource["Type"] == "AWS::ApiGatewayV2::Api"]
    assert sorted(api["Properties"]["Name"] for api in apis) == ["Shop-Old-Polls", "Shop-Tally"]


def test_no_resource_of_one_construct_refers_to_another_construct(template: dict[str, Any]) -> None:
    text = {id_: json.dumps(resource) for id_, resource in template["Resources"].items()}
    first, second = ([id_ for id_ in text if id_.startswith(name)] for name in ("Tally", "OldPolls"))
    for ids, other_ids in ((first, second), (second, first)):
        assert [(id_, other_id) for id_ in ids for other_id in other_ids if f'"{other_id}"' in text[id_]] == []


def test_options_from_arguments_equal_options_from_the_context() -> None:
    """A construct that keeps its data has the options of the stage prod. An argument of None counts as missing."""
    arguments = {
        "page_hosts": ["example.com", "b.org"],
        "log_sampling": 0.05,
        "throttle": 1,
        "snap_start": False,
        "canary": None,
    }
    options = Options.from_arguments(
        {**arguments, "restored": "20261122T103000", "likers_visible": "nobody"}, keep_data=True
    )
    context = {
        "stage": "prod", "pageHosts": "example.com,b.org", "logSampling": "0.05", "throttle": "1", "snapStart": "false",
        "tables": "Tally-prod-20261122T103000", "likersVisible": "nobody",
    }  # fmt: skip
    assert options == Options.from_context(context)
    assert Options.from_arguments({}, keep_data=True) == Options.from_context({"stage": "prod"})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"page_host": ["a"]}, "page_host is not an option of Tally: there are keep_data, issuer, "),
        ({"stage": "prod"}, "stage is not an option of Tally: "),
        ({"cdn": True}, "cdn is not an option of Tally: "),
        ({"page_hosts": ["a/b"]}, "page_hosts has 'a/b': give hosts like example.com, or * alone for any"),
        (
            {"page_hosts": {"a": 1}},
            "page_hosts is {'a': 1}: it must be text, a number, a boolean, or a list of texts",
        ),
        ({"warm_writes": 3}, "warm_writes is '3': it must be a whole number from 4000 to 10000000"),
        ({"issuer": "https://a.b/"}, "issuer and audience go together: give both, or neither for a Cognito user pool"),
        ({"domain_name": "api.example.com"}, "domain_name and certificate_arn go together: give both, or neither"),
        ({"restored": "x"}, "restored has 'Tally-prod-x': give what `tally restore` prints, Tally-STAGE-MOMENT"),
    ],
)
def test_an_error_names_the_wrong_argument(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionsError) as refused:
        Options.from_arguments(arguments, keep_data=True)
    assert str(refused.value).startswith(message)
    assert "context" not in str(refused.value), "a team gives arguments, not CDK context"


@pytest.mark.parametrize(
    ("stack_name", "id_", "message"),
    [
        ("Shop-of-a-company-with-a-long-name", "Tally-of-us", "it must have up to 41 letters, digits and hyphens"),
        ("Shop", "My Tally", "it must have up to 41 letters, digits and hyphens"),
        ("Aws-shop", "Tally", "Cognito refuses a domain with 'aws' in it"),
    ],
)
def test_the_construct_refuses_a_name_that_an_aws_service_refuses(
    tmp_path: Path, stack_name: str, id_: str, message: str
) -> None:
    with pytest.raises(OptionsError, match=message):
        Tally(Stack(app_in(tmp_path), "Shop", stack_name=stack_name), id_, counters=COUNTERS)
