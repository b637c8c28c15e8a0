"""The bundle of the functions."""

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
from tests.infra.template import Template
from tests.patience import PATIENCE_S

BUNDLE = Bundle(
    LAMBDAS, Declarations.load(LAMBDAS / "counters.py"), UserVisibility.ANYONE, cache_folder=LAMBDAS.parent / ".build"
)
BYTES_MAX = 6_550_000  # unpacked; Powertools alone is 4 MB, pydantic would add 6, boto3 100


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("bundle") / "bundle"
    BUNDLE.write(target)
    return target


def contents(folder: Path) -> dict[str, tuple[int, str]]:
    """Mode and hash of each file, by its path."""
    return {
        path.relative_to(folder).as_posix(): (path.stat().st_mode, hashlib.sha256(path.read_bytes()).hexdigest())
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_handlers_core_and_packages_are_there(bundle: Path) -> None:
    for name, path in BUNDLE.sources.items():
        assert (bundle / name).read_bytes() == path.read_bytes()
    assert (bundle / "tally" / "operations" / "increments.py").is_file()
    assert (bundle / "tally" / "dynamo" / "transactions.py").is_file()
    assert (bundle / "tally" / "javascript" / "beacon.js").is_file()
    for name in ("index.html", "app.js", "uPlot.iife.min.js", "uPlot.min.css", "uPlot.LICENSE"):
        assert (bundle / "tally" / "console" / name).is_file()
    made = json.loads((bundle / "openapi.json").read_text(encoding="utf-8"))
    assert made == document(BUNDLE.declarations.operations, COUNTERS, BUNDLE.likers)
    assert not [name for name in NOT_DEPLOYED if (bundle / "tally" / name).exists()]
    for package in ("aws_lambda_powertools", "url_normalize", "idna", "jmespath", "typing_extensions.py"):
        assert (bundle / package).exists(), package


def test_slow_packages_and_those_of_the_runtime_are_not_there(bundle: Path) -> None:
    for package in ("pydantic", "pydantic_core", "boto3", "botocore", "aws_xray_sdk", "bin", "requirements.txt"):
        assert not (bundle / package).exists(), package
    assert not list(bundle.rglob("__pycache__"))


def test_it_is_small(bundle: Path) -> None:
    assert sum(path.stat().st_size for path in bundle.rglob("*") if path.is_file()) <= BYTES_MAX


def test_everything_can_be_read_by_lambda_and_its_licence_by_people(bundle: Path) -> None:
    assert {mode & 0o777 for mode, _ in contents(bundle).values()} == {0o644}
    assert list(bundle.glob("aws_lambda_powertools-*.dist-info/licenses/*"))


def test_it_is_the_same_each_time_and_names_no_machine(bundle: Path, tmp_path: Path) -> None:
    BUNDLE.write(tmp_path / "again")
    assert contents(tmp_path / "again") == contents(bundle)
    assert not {"RECORD", "INSTALLER", "direct_url.json"} & {path.name for path in bundle.rglob("*")}
    here = str(LAMBDAS.parent).encode()
    assert not [path for path in bundle.rglob("*") if path.is_file() and here in path.read_bytes()]


def test_digest_follows_sources_and_pins(tmp_path: Path) -> None:
    made = replace(BUNDLE, lambdas=tmp_path)
    (tmp_path / "requirements.txt").write_text("idna==3.20\n")
    (tmp_path / "plays.py").write_text("a")
    first = made.digest()
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "plays.pyc").write_text("compiled")
    assert made.digest() == first
    (tmp_path / "plays.py").write_text("b")
    second = made.digest()
    (tmp_path / "requirements.txt").write_text("idna==3.21\n")
    assert len({first, second, made.digest()}) == 3


def test_a_package_without_a_hash_is_not_installed(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("idna==3.10\n")
    with pytest.raises(BundlingError, match="hash"):
        replace(BUNDLE, lambdas=tmp_path).write(tmp_path / "bundle")


def test_a_template_without_the_bundle_names_another_asset(dev: Template) -> None:
    """What somebody uploaded must not be taken for it, nor it for that. CDK hashes the name that it gets."""
    keys = {one["Properties"]["Code"]["S3Key"] for one in dev.of_type("AWS::Lambda::Function").values()}
    assert keys == {f"{hashlib.sha256(f'{BUNDLE.digest()}-unbundled'.encode()).hexdigest()}.zip"}


def test_a_teams_own_counters_replace_those_in_the_sources(tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text((LAMBDAS / "counters.py").read_text() + "# ours\n")
    made = replace(BUNDLE, declarations=Declarations.load(own))
    assert made.sources["counters.py"] == own
    assert made.sources.keys() == BUNDLE.sources.keys()
    assert made.digest() != BUNDLE.digest()


def test_it_has_the_document_of_its_own_stack(tmp_path: Path) -> None:
    own = tmp_path / "counters.py"
    own.write_text(
        "from dataclasses import replace\nfrom tally.counter import ANYONE, declared\nfrom tally.builtin import LIKES\n"
        "LIKES = replace(LIKES, lists=ANYONE)\nCOUNTERS = declared([LIKES])\n"
    )
    shown = replace(BUNDLE, declarations=Declarations.load(own))
    hidden = replace(shown, likers=UserVisibility.NOBODY)
    assert hidden.digest() != shown.digest()
    path = "/counters/likes/{id}/children"
    assert path in json.loads(shown.openapi())["paths"].keys() - json.loads(hidden.openapi())["paths"].keys()


@pytest.mark.long
def test_the_sources_need_no_python_newer_than_the_tests_have() -> None:
    """The tests run on 3.11, the functions on 3.14: a feature in between would be untested."""
    sources = [str(path) for path in BUNDLE.sources.values() if path.suffix == ".py"]
    command = [str(Path(sys.executable).with_name("vermin")), "--no-tips", "--violations", "-t=3.11-", *sources]
    run = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert run.returncode == 0, run.stdout
    assert "Minimum required versions: 3." in run.stdout


def test_the_sources_use_nothing_that_the_deployed_python_no_longer_has() -> None:
    """The stubs of the standard library say which version dropped what."""
    command = [str(Path(sys.executable).with_name("mypy")), "--no-error-summary", "--python-version", PYTHON_VERSION]
    run = subprocess.run(
        [*command, *(str(path) for path in BUNDLE.sources.values() if path.suffix == ".py" and path.parent != LAMBDAS)],
        cwd=LAMBDAS.parent,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert run.returncode == 0, run.stdout


def test_the_deployed_python_compiles_the_bundle_and_imports_every_handler_without_a_warning(bundle: Path) -> None:
    python = shutil.which(f"python{PYTHON_VERSION}")
    if python is None:
        pytest.skip(f"no python{PYTHON_VERSION} is installed: the runtime that is deployed imports nothing here")
    of_the_runtime = Path(boto3.__file__).parents[1]
    importing = [
        "import compileall, importlib, pathlib, sys",
        "bundle, of_the_runtime = sys.argv[1:]",
        "sys.path[:0] = [bundle]",
        "sys.path.append(of_the_runtime)",
        "assert compileall.compile_dir(bundle, quiet=1, force=True)",
        "for found in sorted(pathlib.Path(bundle, 'tally/operations').glob('*.py')):",
        "    importlib.import_module(f'tally.operations.{found.stem}')",
        "print(sys.version_info[:2], len(sys.modules))",
    ]
    command = [python, "-I", "-B", "-W", "error", "-c", "\n".join(importing), str(bundle), str(of_the_runtime)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith(str(tuple(map(int, PYTHON_VERSION.split(".")))))
