"""A stack that counts visitors of pages: no backup has the salts of the days, and only two functions may use salts."""

from __future__ import annotations

import json

import pytest
from aws_cdk import App, Environment, Stack

from tally.cdk import Tally
from tally.contract.declarations import Declarations
from tally.contract.deployment import SALTS_TABLE, Surroundings, table_schemas
from tally.contract.deployment_document import deployment_document
from tests.infra.conftest import BEHIND_CDN, UNBUNDLED, VAULT
from tests.infra.template import Template, as_list

COUNTERS = """
from tally.counter import declared
from tally.builtin import BOT_VISITS, PAGE_VISITORS, VISITS

COUNTERS = declared([VISITS, BOT_VISITS, PAGE_VISITORS])
"""
ISSUER_OPTIONS = {name: BEHIND_CDN[name] for name in ("issuer", "audience")}


@pytest.fixture(scope="module")
def declared(tmp_path_factory: pytest.TempPathFactory) -> Declarations:
    path = tmp_path_factory.mktemp("counters") / "counters.py"
    path.write_text(COUNTERS)
    return Declarations.load(path)


@pytest.fixture(scope="module")
def site(declared: Declarations, tmp_path_factory: pytest.TempPathFactory) -> Template:
    """The stack `Site`, which keeps its data and copies its backups to another region."""
    folder = tmp_path_factory.mktemp("site")
    app = App(outdir=str(folder), context=UNBUNDLED, analytics_reporting=False)
    stack = Stack(app, "Site", env=Environment(account="123456789012", region="eu-west-1"))
    # CDK leaves the id "Default" out of logical ids.
    Tally(stack, "Default", counters=declared, canary=False, backup_to=VAULT, **ISSUER_OPTIONS)
    app.synth()
    return Template(folder, id="Site")


def test_the_salts_are_in_no_backup_copy_or_stream_and_are_deleted_with_the_stack(site: Template) -> None:
    salts = site.resources["SaltsTable"]
    properties = salts["Properties"]
    assert properties["PointInTimeRecoverySpecification"] == {"PointInTimeRecoveryEnabled": False}
    assert (properties.get("StreamSpecification"), properties["DeletionProtectionEnabled"]) == (None, False)
    assert (salts["DeletionPolicy"], properties["TimeToLiveSpecification"]["Enabled"]) == ("Delete", True)
    assert "SaltsTable" not in json.dumps(site.of_type("AWS::Backup::BackupSelection"))
    for name in ("CountsTable", "ReceiptsTable", "LedgerTable"):
        table = site.resources[name]
        assert table["Properties"]["PointInTimeRecoverySpecification"] == {"PointInTimeRecoveryEnabled": True}
        assert name in json.dumps(site.of_type("AWS::Backup::BackupSelection"))


def test_the_function_visits_makes_salts_the_sweep_removes_them_and_no_other_role_has_access(site: Template) -> None:
    allowed = {}
    for module, name in site.functions().items():
        for statement in site.statements(name):
            if "SaltsTable" in json.dumps(statement["Resource"]):
                keys = statement["Condition"]["ForAllValues:StringLike"]["dynamodb:LeadingKeys"]
                allowed[module] = (sorted(as_list(statement["Action"])), as_list(keys))
    assert allowed == {
        "visits": (["dynamodb:GetItem", "dynamodb:PutItem"], ["SALT#*"]),
        "sweep": (["dynamodb:DeleteItem"], ["SALT#*"]),
    }
    assert "SaltsTable" not in json.dumps(site.of_type("AWS::IAM::ManagedPolicy"))


def test_the_local_stack_has_the_salts_and_the_function_visits_knows_whether_there_is_a_cdn(
    declared: Declarations,
) -> None:
    schemas = table_schemas(declared.counters.values())
    assert [schema for schema in schemas.values() if not schema.has_backups] == [SALTS_TABLE]
    for cdn in (False, True):
        tables, streams = {table: table.value for table in schemas}, dict.fromkeys(schemas, "")
        surroundings = Surroundings("Tally", "v", tables, streams, dead_letters="bucket", has_cdn=cdn)
        document = deployment_document(declared, surroundings, config="", client="")
        assert document["tables"]["salts"]["KeySchema"] == [{"AttributeName": "PK", "KeyType": "HASH"}]
        environments = {name: function["environment"] for name, function in document["functions"].items()}
        knows_cdn = [name for name, variables in environments.items() if "TALLY_CDN" in variables]
        assert knows_cdn == (["visits"] if cdn else [])
        assert {variables["TALLY_SALTS_TABLE"] for variables in environments.values()} == {"salts"}
