"""The construct in a stack of a team's own: its arguments, its grants, and the logical ids that it keeps for ever."""

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
LEFT_OUT = ("hearts", "readers", "ticket")
IDS = Path(__file__).with_name("ids.json")
# What is lost, or called in vain, under another logical id. Each is in ids.json, which a person alone changes.
KEPT = (
    "AWS::DynamoDB::", "AWS::S3::Bucket", "AWS::Cognito::UserPool", "AWS::ApiGatewayV2::Api", "AWS::Lambda::Alias",
    "AWS::SQS::Queue", "AWS::SNS::Topic",
)  # fmt: skip


class Shop(Stack):
    """A team's stack with a function that counts with two Tallys, and a role that reads."""

    def __init__(self, app: App) -> None:
        super().__init__(app, "Shop")
        self.tally = Tally(self, "Tally", counters=COUNTERS, page_hosts=["example.com"], canary=False)
        # Without some counters: a stack may have 500 resources.
        every = Declarations.load(COUNTERS)
        few = replace(every, counters={name: one for name, one in every.counters.items() if name not in LEFT_OUT})
        self.polls = Tally(Construct(self, "Old"), "Polls", counters=few, keep_data=False, receipt_ttl_hours=48)
        self.checkout = function(self, "Checkout")
        self.tally.grant_count(self.checkout)
        self.polls.grant_count(self.checkout, variable="POLLS_FUNCTIONS")
        self.worker = iam.Role(self, "Worker", assumed_by=iam.ServicePrincipal("ecs-tasks.amazonaws.com"))
        for _ in range(2):  # a grant that is repeated adds nothing
            self.tally.grant(self.worker, ["increments"])
            self.tally.grant_count(self.checkout)
        self.seller = function(self, "Seller")
        self.tally.grant_transact(self.seller, ["stock"])
        self.tally.grant_transact(self.seller, ["plays", "usage"])  # a second grant adds
        self.polls.grant_transact(self.seller, "usage", variable="POLLS_TRANSACT")


def function(stack: Stack, id: str) -> lambda_.Function:
    code = lambda_.Code.from_inline("def handler(event, context): ...")
    return lambda_.Function(stack, id, runtime=lambda_.Runtime.PYTHON_3_14, code=code, handler="index.handler")


def app_in(folder: Path) -> App:
    return App(outdir=str(folder), context=UNBUNDLED, analytics_reporting=False)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    app = app_in(tmp_path_factory.mktemp("shop"))
    made = Shop(app)
    app.synth()
    return made


@pytest.fixture(scope="module")
def template(shop: Shop) -> dict[str, Any]:
    folder = Path(shop.node.root.outdir)  # type: ignore[attr-defined]
    found: dict[str, Any] = json.loads((folder / "Shop.template.json").read_text())
    return found


def test_logical_ids_of_what_is_kept_are_those_of_the_list(template: dict[str, Any]) -> None:
    """No program writes the list: another id is a new, empty table, or a name that is looked for in vain."""
    own = {id_: made["Type"] for id_, made in template["Resources"].items() if id_.startswith("Tally")}
    kept = {id_: type_ for id_, type_ in own.items() if type_.startswith(KEPT)}
    outputs = sorted(id_ for id_ in template["Outputs"] if id_.startswith("Tally"))
    assert json.loads(IDS.read_text()) == {"resources": dict(sorted(kept.items())), "outputs": outputs}
    for table in ("CountsTable", "ReceiptsTable", "LedgerTable"):
        assert template["Resources"][f"Tally{table}"]["DeletionPolicy"] == "Retain"
        assert template["Resources"][f"OldPolls{table}"]["DeletionPolicy"] == "Delete", "keep_data=False"


def test_a_function_may_count_with_both(shop: Shop, template: dict[str, Any]) -> None:
    [found] = [
        made
        for id_, made in template["Resources"].items()
        if id_.startswith("Checkout") and "Code" in made["Properties"]
    ]
    variables = found["Properties"]["Environment"]["Variables"]
    assert set(variables) == {"TALLY_FUNCTIONS", "POLLS_FUNCTIONS"}
    for variable, tally in (("TALLY_FUNCTIONS", shop.tally), ("POLLS_FUNCTIONS", shop.polls)):
        text = json.dumps(variables[variable])
        assert set(FUNCTIONS) <= set(tally.functions)
        assert all(f'\\"{name}\\"' in text for name in FUNCTIONS)
    allowed = invoked(template, "Checkout")
    assert len(allowed) == 2 * len(shop.tally.functions)
    assert all("Live" in target for target in allowed)


def test_a_function_may_do_with_the_counters_that_it_changes_itself_what_post_changes_may(
    shop: Shop, template: dict[str, Any]
) -> None:
    allowed = [
        (one["Resource"]["Fn::GetAtt"][0], as_list(one["Action"]), one["Condition"]["ForAllValues:StringLike"])
        for made in template["Resources"].values()
        if made["Type"] == "AWS::IAM::Policy" and made["Properties"]["PolicyName"].startswith("SellerServiceRole")
        for one in made["Properties"]["PolicyDocument"]["Statement"]
    ]
    found = {
        (table, action, prefix)
        for table, actions, condition in allowed
        for action in actions
        for prefix in as_list(condition["dynamodb:LeadingKeys"])
    }
    update, put, keys = "dynamodb:UpdateItem", "dynamodb:PutItem", ("ITEM#*", "VID#*", "USER#*")
    holds = (put, "dynamodb:Query", "dynamodb:DeleteItem")
    assert found == {
        *(("TallyCountsTable", update, prefix) for prefix in keys),
        ("OldPollsCountsTable", update, "USER#*"),
        *((f"{tally}ReceiptsTable", put, "tally#*") for tally in ("Tally", "OldPolls")),
        *(("TallyLedgerTable", action, "HOLDS#*") for action in holds),
    }


def test_a_function_that_changes_counters_goes_live_after_the_consumers_and_knows_what_is_deployed(
    shop: Shop, template: dict[str, Any]
) -> None:
    [seller] = [
        made for id_, made in template["Resources"].items() if id_.startswith("Seller") and "Code" in made["Properties"]
    ]
    needed = set(seller["DependsOn"])
    for tally in ("Tally", "OldPolls"):
        consuming = [
            id_
            for id_, made in template["Resources"].items()
            if id_.startswith(tally) and made["Type"] == "AWS::Lambda::EventSourceMapping"
        ]
        assert set(consuming) <= needed
        assert len(consuming) == 4
    known = {}
    for variable, said in seller["Properties"]["Environment"]["Variables"].items():
        text = "".join(part if isinstance(part, str) else part["Ref"] for part in said["Fn::Join"][1])
        assert len(text) < 1000
        made = Transactions.from_environment({variable: text}, caller="seller", variable=variable)
        settings = made._store.settings
        known[variable] = (settings.counts_table, settings.receipt_ttl_s // 3600, made._counters)
    declared = shop.tally._declarations.counters
    assert known == {
        "TALLY_TRANSACT": ("TallyCountsTable", 24, {name: declared[name] for name in ("stock", "plays", "usage")}),
        "POLLS_TRANSACT": ("OldPollsCountsTable", 48, {"usage": declared["usage"]}),
    }


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (["stock", "hits"], "grant_transact got 'hits', which cannot be part of a batch: give some of "),
        (["likes"], "got 'likes', which cannot"),
        (["ticket"], "got 'ticket', which cannot"),
        (["visits"], "got 'visits', which cannot"),
        ([], "grant_transact got no counter: give some of "),
    ],
)
def test_a_function_changes_no_counter_that_is_changed_alone(shop: Shop, names: list[str], says: str) -> None:
    with pytest.raises(OptionsError, match=says):
        shop.tally.grant_transact(shop.checkout, names)


def test_a_role_may_invoke_what_is_named_and_no_more(template: dict[str, Any]) -> None:
    [target] = invoked(template, "Worker")
    assert target.startswith("TallyFunctionsIncrementsLive")


def invoked(template: dict[str, Any], whose: str) -> list[str]:
    """The logical ids of what the policies of a role let it invoke."""
    statements = [
        statement
        for id_, made in template["Resources"].items()
        if id_.startswith(whose) and made["Type"] == "AWS::IAM::Policy"
        for statement in made["Properties"]["PolicyDocument"]["Statement"]
        if statement["Action"] == "lambda:InvokeFunction"
    ]
    lists = [statement["Resource"] for statement in statements]
    return [one["Ref"] for found in lists for one in (found if isinstance(found, list) else [found])]


def test_a_second_tally_on_one_variable_and_a_function_that_there_is_not_are_refused(shop: Shop) -> None:
    with pytest.raises(OptionsError, match=r"Shop/Checkout already counts with another Tally by TALLY_FUNCTIONS: give"):
        shop.polls.grant_count(shop.checkout)
    with pytest.raises(OptionsError, match=r"Shop/Seller already counts with another Tally by TALLY_TRANSACT: give"):
        shop.polls.grant_transact(shop.seller, ["stock"])
    with pytest.raises(OptionsError, match="Tally has no function 'plays': give some of "):
        shop.tally.grant(shop.worker, ["plays"])


def test_two_tallys_in_one_stack_share_no_name(template: dict[str, Any]) -> None:
    """No alarm, dashboard or domain of sign-in, and no API. The second one is below a construct."""
    made = template["Resources"].values()
    found = [
        (one["Type"], json.dumps(one["Properties"][field]))
        for one in made
        for field in ("AlarmName", "DashboardName", "Domain")
        if one["Type"].startswith(("AWS::CloudWatch::", "AWS::Cognito::")) and field in one["Properties"]
    ]
    assert len(found) == len(set(found)) > 40
    apis = [one["Properties"]["Name"] for one in made if one["Type"] == "AWS::ApiGatewayV2::Api"]
    assert sorted(apis) == ["Shop-Old-Polls", "Shop-Tally"]


def test_nothing_of_one_tally_refers_to_the_other(template: dict[str, Any]) -> None:
    text = {id_: json.dumps(made) for id_, made in template["Resources"].items()}
    first, second = ([id_ for id_ in text if id_.startswith(name)] for name in ("Tally", "OldPolls"))
    for own, others in ((first, second), (second, first)):
        assert [(id_, other) for id_ in own for other in others if f'"{other}"' in text[id_]] == []


def test_options_have_the_value_that_a_context_has() -> None:
    given = {
        "page_hosts": ["example.com", "b.org"],
        "log_sampling": 0.05,
        "throttle": 1,
        "snap_start": False,
        "canary": None,
    }
    made = Options.from_arguments({**given, "restored": "20261122T103000", "likers_visible": "nobody"}, keep_data=True)
    context = {
        "stage": "prod", "pageHosts": "example.com,b.org", "logSampling": "0.05", "throttle": "1", "snapStart": "false",
        "tables": "Tally-prod-20261122T103000", "likersVisible": "nobody",
    }  # fmt: skip
    assert made == Options.from_context(context)
    assert Options.from_arguments({}, keep_data=True) == Options.from_context({"stage": "prod"})


@pytest.mark.parametrize(
    ("given", "says"),
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
def test_what_is_wrong_is_said_by_argument(given: dict[str, Any], says: str) -> None:
    with pytest.raises(OptionsError) as refused:
        Options.from_arguments(given, keep_data=True)
    assert str(refused.value).startswith(says)
    assert "context" not in str(refused.value)


@pytest.mark.parametrize(
    ("stack_name", "id_", "says"),
    [
        ("Shop-of-a-company-with-a-long-name", "Tally-of-us", "it must have up to 41 letters, digits and hyphens"),
        ("Shop", "My Tally", "it must have up to 41 letters, digits and hyphens"),
        ("Aws-shop", "Tally", "Cognito refuses a domain with 'aws' in it"),
    ],
)
def test_a_name_that_a_service_refuses_is_refused_here(tmp_path: Path, stack_name: str, id_: str, says: str) -> None:
    with pytest.raises(OptionsError, match=says):
        Tally(Stack(app_in(tmp_path), "Shop", stack_name=stack_name), id_, counters=COUNTERS)
