"""The bundle of the functions: its files, its size, its digest, and its Python version."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import boto3
import pytest

from app import LAMBDAS
from counters import COUNTERS
from tally.api.operation import UserVisibility
from tally.cdk.bundling import NOT_DEPLOYED, PYTHON_VERSION, Bundle, BundlingError
from tally.contract.declarations import Declarations
from tally.contract.document import document
from tally.paths import PACKAGE
from tests.infra.template import Template
from tests.patience import PATIENCE_S

BUNDLE = Bundle(
    LAMBDAS, Declarations.load(LAMBDAS / "counters.py"), UserVisibility.ANYONE, cache_folder=LAMBDAS.parent / ".build"
)
BYTES_MAX = 6_600_000  # of the unpacked files; Powertools has 4 MB, pydantic would add 6 MB, boto3 100 MB


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("bundle") / "bundle"
    BUNDLE.write(target)
    return target


def contents(folder: Path) -> dict[str, tuple[int, str]]:
    """Returns the mode and the hash of each file, by its path."""
    return {
        path.relative_to(folder).as_posix(): (path.stat().st_mode, hashlib.sha256(path.read_bytes()).hexdigest())
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_the_bundle_has_handlers_core_console_and_packages(bundle: Path) -> None:
    for name, path in BUNDLE.sources.items():
        assert (bundle / name).read_bytes() == path.read_bytes()
    assert (bundle / "tally" / "operations" / "increments.py").is_file()
    assert (bundle / "tally" / "dynamo" / "transactions.py").is_file()
    assert (bundle / "tally" / "javascript" / "beacon.js").is_file()
    for name in ("index.html", "app.js", "uPlot.iife.min.js", "uPlot.min.css", "uPlot.LICENSE"):
        assert (bundle / "tally" / "console" / name).is_file()
    openapi = json.loads((bundle / "openapi.json").read_text(encoding="utf-8"))
    assert openapi == document(BUNDLE.declarations.operations, COUNTERS, BUNDLE.likers_visible)
    assert not [name for name in NOT_DEPLOYED if (bundle / "tally" / name).exists()]
    assert all((PACKAGE / name).exists() for name in NOT_DEPLOYED)
    for package in ("aws_lambda_powertools", "url_normalize", "idna", "jmespath", "typing_extensions.py"):
        assert (bundle / package).exists(), package


def test_the_bundle_has_no_slow_package_and_no_package_of_the_runtime(bundle: Path) -> None:
    for package in ("pydantic", "pydantic_core", "boto3", "botocore", "aws_xray_sdk", "bin", "requirements.txt"):
        assert not (bundle / package).exists(), package
    assert not list(bundle.rglob("__pycache__"))


def test_the_bundle_is_not_larger_than_its_limit(bundle: Path) -> None:
    assert sum(path.stat().st_size for path in bundle.rglob("*") if path.is_file()) <= BYTES_MAX


def test_lambda_can_read_each_file_and_the_licences_of_packages_are_in_the_bundle(bundle: Path) -> None:
    assert {mode & 0o777 for mode, _ in contents(bundle).values()} == {0o644}
    assert list(bundle.glob("aws_lambda_powertools-*.dist-info/licenses/*"))


def test_two_bundles_are_identical_and_name_no_machine(bundle: Path, tmp_path: Path) -> None:
    BUNDLE.write(tmp_path / "second")
    assert contents(tmp_path / "second") == contents(bundle)
    assert not {"RECORD", "INSTALLER", "direct_url.json"} & {path.name for path in bundle.rglob("*")}
    checkout = str(LAMBDAS.parent).encode()
    assert not [path for path in bundle.rglob("*") if path.is_file() and checkout in path.read_bytes()]


def test_the_digest_depends_on_sources_and_pins_and_not_on_compiled_files(tmp_path: Path) -> None:
    copy = replace(BUNDLE, lambdas=tmp_path)
    (tmp_path / "requirements.txt").write_text("idna==3.20\n")
    (tmp_path / "plays.py").write_text("a")
    first = copy.digest()
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "plays.pyc").write_text("compiled")
    assert copy.digest() == first
    (tmp_path / "plays.py").write_text("b")
    second = copy.digest()
    (tmp_path / "requirements.txt").write_text("idna==3.21\n")
    assert len({first, second, copy.digest()}) == 3


def test_a_package_without_a_hash_is_not_installed(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("idna==3.10\n")
    with pytest.raises(BundlingError, match="hash"):
        replace(BUNDLE, lambdas=tmp_path).write(tmp_path / "bundle")


def test_a_template_that_was_synthesized_without_the_bundle_names_another_asset(dev: Template) -> None:
    """If the bundle had the same name, a deploy could use the asset without code. CDK hashes the name that it gets."""
    keys = {function["Properties"]["Code"]["S3Key"] for function in dev.of_type("AWS::Lambda::Function").values()}
    assert keys == {f"{hashlib.sha256(f'{BUNDLE.digest()}-unbundled'.encode()).hexdigest()}.zip"}


def test_the_counters_of_a_team_replace_the_counters_of_the_checkout(tmp_path: Path) -> None:
    team_file = tmp_path / "team.py"
    team_file.write_text((LAMBDAS / "counters.py").read_text() + "# ours\n")
    bundle = replace(BUNDLE, declarations=Declarations.load(team_file))
    assert bundle.sources["counters.py"] == team_file
    assert bundle.sources.keys() == BUNDLE.sources.keys()
    assert bundle.digest() != BUNDLE.digest()


def test_the_bundle_has_the_openapi_document_of_its_stack(tmp_path: Path) -> None:
    team_file = tmp_path / "counters.py"
    team_file.write_text(
        "from dataclasses import replace\nfrom tally.counter import ANYONE, declared\nfrom tally.builtin import LIKES\n"
        "LIKES = replace(LIKES, lists=ANYONE)\nCOUNTERS = declared([LIKES])\n"
    )
    with_likers = replace(BUNDLE, declarations=Declarations.load(team_file))
    without_likers = replace(with_likers, likers_visible=UserVisibility.NOBODY)
    assert without_likers.digest() != with_likers.digest()
    listed, hidden = (json.loads(bundle.openapi())["paths"].keys() for bundle in (with_likers, without_likers))
    assert "/counters/likes/{id}/children" in listed - hidden


@pytest.mark.long
def test_the_sources_need_no_newer_python_than_the_oldest_that_the_tests_run_on() -> None:
    """The tests run on Python 3.11. So a feature of a later version, which the functions have, would be untested."""
    sources = [str(path) for path in BUNDLE.sources.values() if path.suffix == ".py"]
    command = [str(Path(sys.executable).with_name("vermin")), "--no-tips", "--violations", "-t=3.11-", *sources]
    run = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert run.returncode == 0, run.stdout
    assert "Minimum required versions: 3." in run.stdout


def test_the_sources_use_nothing_that_the_deployed_python_has_dropped() -> None:
    """mypy's stubs of the standard library say which version has dropped which names."""
    command = [str(Path(sys.executable).with_name("mypy")), "--no-error-summary", "--python-version", PYTHON_VERSION]
    run = subprocess.run(
        [*command, *(str(path) for path in BUNDLE.sources.values() if path.suffix == ".py")],
        cwd=LAMBDAS.parent,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert run.returncode == 0, run.stdout


def test_the_deployed_python_compiles_the_bundle_and_imports_every_module_without_a_warning(bundle: Path) -> None:
    python = shutil.which(f"python{PYTHON_VERSION}")
    if python is None:
        pytest.skip(f"python{PYTHON_VERSION} is not installed, so the deployed version imports no module here")
    runtime_packages = Path(boto3.__file__).parents[1]  # Lambda's runtime has boto3
    program = [
        "import compileall, importlib, pathlib, sys",
        "bundle, runtime_packages = sys.argv[1:]",
        "sys.path[:0] = [bundle]",
        "sys.path.append(runtime_packages)",
        "assert compileall.compile_dir(bundle, quiet=1, force=True)",
        "for file in (pathlib.Path(bundle, 'handlers.py'), *sorted(pathlib.Path(bundle, 'tally').rglob('*.py'))):",
        "    name = '.'.join(file.relative_to(bundle).with_suffix('').parts)",
        "    importlib.import_module(name.removesuffix('.__init__'))",
        "print(sys.version_info[:2], len(sys.modules))",
    ]
    command = [python, "-I", "-B", "-W", "error", "-c", "\n".join(program), str(bundle), str(runtime_packages)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith(str(tuple(map(int, PYTHON_VERSION.split(".")))))
