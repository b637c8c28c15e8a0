"""With only the wheel, a team can follow docs/adopt.md, pass the rules of cdk-nag, and upgrade to the next version."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from release import build
from tests.infra.conftest import context_of_cdk_json
from tests.wheel import adopt_page
from tests.wheel.conftest import install, run

pytestmark = pytest.mark.long

IMPORT_ALL = """
import importlib, pkgutil, sys, tally
modules = pkgutil.walk_packages(tally.__path__, "tally.")
names = [module.name for module in modules if not module.name.endswith("__main__")]
for name in names:
    importlib.import_module(name)
# Each import of a module of the package begins with `tally.`, and no module imports a module of the checkout.
wrong = ("api", "operations", "cli", "dev", "counters", "stacks")
assert not [name for name in sys.modules if name.partition(".")[0] in wrong]
print(len(names))
"""
TWO_CONSTRUCTS = """
import sys
from aws_cdk import App, Stack, Validations
from cdk_nag import AwsSolutionsChecks
from tally.cdk import Tally
app = App()
stack = Stack(app, "Shop")
Tally(stack, "Tally", counters="counters.py")
Tally(stack, "Polls", counters="counters.py", keep_data=False, canary=False)
if "broken" in sys.argv:
    from aws_cdk.aws_s3 import Bucket
    Bucket(stack, "Open")
Validations.of(app).add_plugins(AwsSolutionsChecks(app))
app.synth()
"""
IMPORT_CLIENT = (
    "import tally.client, sys; assert not any('aws_cdk' in name or 'powertools' in name for name in sys.modules)"
)

UNREACHABLE_DYNAMODB = {
    "AWS_ENDPOINT_URL_DYNAMODB": "http://localhost:9", "AWS_DEFAULT_REGION": "eu-west-1",
    "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x",
}  # fmt: skip
COMMIT = """
import json
from tally.dynamo.keys import FORMAT
from tally.errors import StoreUnreachableError
from tally.transact import Transactions
names = ("COUNTS", "RECEIPTS", "LEDGER")
counter = {"name": "usage", "prefix": "USER", "sort_key": "USAGE", "attribute": "usage"}
settings = {f"TALLY_{name}_TABLE": name for name in names}
transact_variable = {"format": FORMAT, "version": "", "counters": [counter], "settings": settings}
tally = Transactions.from_environment({"TALLY_TRANSACT": json.dumps(transact_variable)}, caller="orders")
try:
    tally.commit("k", [("usage", "ann", 1)], [{"Delete": {"TableName": "shop", "Key": {"PK": {"S": "a"}}}}])
except StoreUnreachableError:  # the request was sent, and no DynamoDB listens
    pass
else:
    raise AssertionError
"""


@pytest.fixture
def shop(tmp_path: Path, wheel: Path, python: Path) -> Path:
    """The folder of the page's app."""
    adopt_page.write_files(tmp_path)
    return tmp_path


def template(shop: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((shop / "cdk.out/Shop.template.json").read_text())
    return content


def without_network(*command: str) -> list[str]:
    """Returns the command that runs `command` without a network, if the kernel allows that."""
    unshare = ["unshare", "--map-root-user", "--net"]
    possible = shutil.which("unshare") and not subprocess.run([*unshare, "true"], capture_output=True).returncode
    return [*(unshare if possible else []), *command]


def test_the_commands_of_the_page_synthesize_a_stack_without_a_network(shop: Path, wheel: Path) -> None:
    *first_commands, synth, invoke = adopt_page.commands()
    assert synth == "cdk synth --quiet"
    assert invoke.startswith("aws lambda invoke ")
    variables = {"UV_FIND_LINKS": str(wheel.parent)}
    for command in first_commands:
        run("sh", "-c", command, cwd=shop, variables=variables)
    run(*without_network(*synth.split()), cwd=shop)
    resources = template(shop)["Resources"].values()
    role_properties = json.dumps(
        [resource["Properties"] for resource in resources if resource["Type"] == "AWS::IAM::Role"]
    )
    assert '"FLIGHT#*"' in role_properties
    assert "USER#" not in role_properties  # the prefix of a counter of the repository, not of the shop
    [bundle] = (shop / "cdk.out").glob("lambdas-*")
    assert (bundle / "counters.py").read_text() == (shop / "counters.py").read_text()
    assert '"seats"' in (bundle / "openapi.json").read_text()
    assert (bundle / "aws_lambda_powertools").is_dir()
    assert (bundle / "tally/console/uPlot.iife.min.js").is_file()
    assert not list(bundle.rglob("__pycache__"))


def test_every_module_of_the_package_can_be_imported(shop: Path, python: Path) -> None:
    assert int(run(str(python), "-c", IMPORT_ALL, cwd=shop).stdout) > 150


def test_two_constructs_in_a_stack_pass_cdk_nag_with_and_without_feature_flags(shop: Path, python: Path) -> None:
    (shop / "two.py").write_text(TWO_CONSTRUCTS)
    for flags in ({}, context_of_cdk_json()):
        variables = {"CDK_OUTDIR": str(shop / "cdk.out"), "CDK_CONTEXT_JSON": json.dumps(flags)}
        run(str(python), "two.py", cwd=shop, variables=variables)
        resources = template(shop)["Resources"]
        assert 400 < len(resources) < 500, "a stack may have 500 resources"
        assert {"TallyCountsTable", "PollsCountsTable"} <= resources.keys()
        broken = run(str(python), "two.py", "broken", cwd=shop, check=False, variables=variables)
        assert broken.returncode != 0


def test_the_client_needs_only_boto3(tmp_path: Path, wheel: Path) -> None:
    """The test installs the oldest boto3 that the package allows."""
    python = install(tmp_path / "alone", str(wheel), "boto3==1.40.0")
    run(str(python), "-c", IMPORT_CLIENT, cwd=tmp_path)
    packages = run("uv", "pip", "list", "--python", str(python), "--format", "json", cwd=tmp_path).stdout
    versions = {package["name"]: package["version"] for package in json.loads(packages)}
    assert versions["boto3"] == "1.40.0"
    assert not {"aws-cdk-lib", "aws-lambda-powertools"} & versions.keys()


def test_a_function_can_send_a_commit_with_the_packages_that_transactions_md_installs_and_the_oldest_boto3(
    tmp_path: Path, wheel: Path
) -> None:
    transactions_page = (build.ROOT / "docs/transactions.md").read_text()
    [install_command] = re.findall(r"^```sh\n(uv pip install .*)\n```$", transactions_page, re.MULTILINE)
    run("sh", "-c", install_command, cwd=tmp_path, variables={"UV_FIND_LINKS": str(wheel.parent)})
    runtime = install(tmp_path / "runtime", "boto3==1.40.0")
    run(str(runtime), "-c", COMMIT, cwd=tmp_path, variables={"PYTHONPATH": "orders", **UNREACHABLE_DYNAMODB})
    megabytes = sum(path.stat().st_size for path in (tmp_path / "orders").rglob("*") if path.is_file()) / 1e6
    assert megabytes < 15, "docs/transactions.md says 11 MB"


def test_the_package_without_extras_runs_init_and_refuses_other_commands(tmp_path: Path, wheel: Path) -> None:
    """Runs `tallystick init` as `uvx` does."""
    command = str(install(tmp_path / "alone", str(wheel)).with_name("tallystick"))
    printed = run(command, "init", "shop", cwd=tmp_path).stdout
    assert "uv tool install 'tallystick[cdk,dev]'" in printed
    assert {path.name for path in (tmp_path / "shop").iterdir()} == {"counters.py", "app.py", "cdk.json"}
    for arguments, reason in (
        (["init", "shop"], "nothing is written: shop/counters.py already exists"),
        (["status"], "is missing, and the command needs it: install 'tallystick[dev]'"),
    ):
        refused = run(command, *arguments, cwd=tmp_path, check=False)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert re.fullmatch(f"tally: .*{re.escape(reason)}\n", refused.stderr), refused.stderr


def test_the_next_version_changes_only_the_code_of_functions(
    shop: Path, python: Path, wheel: Path, tmp_path_factory: Any
) -> None:
    """A wheel with one changed handler changes only the code of functions, and the ids of their versions."""
    checkout, out = tmp_path_factory.mktemp("next"), tmp_path_factory.mktemp("dist")
    for path in build.git_files():
        (checkout / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(build.ROOT / path, checkout / path)
    (checkout / "node_modules").symlink_to(build.ROOT / "node_modules")
    handler = checkout / "tally/operations/holds.py"
    handler.write_text(handler.read_text() + "\n# changed\n")
    run("git", "init", "--quiet", cwd=checkout)
    run(sys.executable, "-m", "release.build", "--out", str(out), cwd=checkout)
    [changed] = out.glob("*.whl")
    before, after = (
        unversioned_properties(shop, python, unpack(path, shop / name))
        for path, name in ((wheel, "n"), (changed, "n+1"))
    )
    assert before.keys() == after.keys()
    assert {name for id_ in before for name in before[id_] if before[id_][name] != after[id_][name]} == {"Code"}


def unpack(wheel: Path, target: Path) -> Path:
    """Unpack the wheel into a folder, and return the folder, for PYTHONPATH."""
    shutil.unpack_archive(wheel, target, "zip")
    return target


def unversioned_properties(shop: Path, python: Path, package: Path) -> dict[str, Any]:
    """Returns the properties of each resource of the shop by its id, without the version of the code."""
    variables = {"CDK_OUTDIR": str(shop / "cdk.out"), "PYTHONPATH": str(package)}
    run(str(python), "app.py", cwd=shop, variables=variables)
    text = re.sub(r"(CurrentVersion[0-9A-F]{8})[0-9a-f]{32}", r"\1", json.dumps(template(shop)))
    [version] = set(re.findall(r'"TALLY_VERSION": "(\w+)"', text))
    return {
        id_: resource.get("Properties", {})
        for id_, resource in json.loads(text.replace(version, "VERSION"))["Resources"].items()
    }
