"""Runs the command in a folder outside a checkout: `init` writes the folder's files, and each error is one line."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from tally.cli import account, destroy, init
from tally.cli.__main__ import main
from tally.cli.terminal import CommandError
from tally.contract.declarations import Declarations
from tests.commands import error_of, run_command
from tests.environments import ROOT
from tests.infra.conftest import BEHIND_CDN
from tests.integration.command.numbers import Run


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Changes into an empty folder outside a checkout."""
    monkeypatch.delenv("TALLY_APP", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_init_writes_valid_counters(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, printed, _ = run_command(capsys, "init", "shop")
    assert (status, printed.splitlines()[0]) == (0, "wrote shop/counters.py, shop/app.py, shop/cdk.json")
    declarations = Declarations.load(folder / "shop/counters.py")
    assert "POST /articles/{id}/shares" in {route.key for route in declarations.routes}
    settings = json.loads((folder / "shop/cdk.json").read_text())
    assert settings["app"].endswith("_NODE_VERSION=20,22 python3 app.py"), (
        "the CDK prints no warning about the age of Node.js"
    )
    assert settings["context"] == json.loads((ROOT / "cdk.json").read_text())["context"]


def test_init_overwrites_nothing_and_writes_all_or_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    existing = f"{init.COUNTERS}# mine"
    (folder / "counters.py").write_text(existing)
    for other_files in ([], ["cdk.json"]):
        for name in other_files:
            (folder / name).write_text(existing)
        assert error_of(main, ["init", "."], capsys) == "nothing is written: counters.py already exists"
        assert {path.name: path.read_text() for path in folder.iterdir()} == dict.fromkeys(
            ("counters.py", *other_files), existing
        )
    assert error_of(main, ["init", "counters.py"], capsys) == "the files cannot be written to counters.py: File exists"


@pytest.mark.parametrize("app_files", [["app.py"], ["cdk.json"], ["app.py", "cdk.json"]])
def test_init_beside_an_app_writes_the_counters_and_says_what_to_add(
    folder: Path, app_files: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    mine = "import aws_cdk  # mine"
    for name in app_files:
        (folder / name).write_text(mine)
    status, printed, _ = run_command(capsys, "init")
    lines = printed.splitlines()
    assert (status, lines[0]) == (0, "wrote counters.py")
    assert lines[1].startswith(f"this folder has your {' and '.join(app_files)}, which stays. ")
    assert lines[2:4] == ["  from tally.cdk import Tally", '  Tally(self, "Tally", counters="counters.py")']
    assert {path.name: path.read_text() for path in folder.iterdir()} == {
        "counters.py": init.COUNTERS, **dict.fromkeys(app_files, mine),
    }  # fmt: skip


def test_init_beside_an_app_that_is_not_of_the_cdk_writes_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "app.py").write_text("import flask")
    error = (
        "nothing is written: app.py exists, and is not an app of the CDK: `tally init NAME` makes a folder beside it"
    )
    assert error_of(main, ["init"], capsys) == error
    assert [path.name for path in folder.iterdir()] == ["app.py"]
    _, printed, _ = run_command(capsys, "init", "tally")
    assert printed.splitlines()[0] == "wrote tally/counters.py, tally/app.py, tally/cdk.json"


def test_commands_read_the_counters_of_the_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert error_of(main, ["get", "shares", "a1", "--local"], capsys).startswith("argument COUNTER: there is no")
    assert run_command(capsys, "init")[0] == 0
    # The command knows the counter, and fails because no server has this port.
    assert error_of(main, ["get", "shares", "a1", "--local", "--port", "1"], capsys).startswith("nothing answers")


def test_a_folder_without_counters_is_an_error_of_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    error = f"{folder}/counters.py is missing: go to the folder of your counters, or run `tally init`"
    assert error_of(main, ["get", "plays", "v", "--local"], capsys) == error
    assert error in error_of(main, ["get", "shares", "v", "--local"], capsys)
    assert error_of(main, ["dev"], capsys) == error


def test_a_wrong_counters_file_is_an_error_of_one_line_and_help_still_works(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = folder / "counters.py"
    file.write_text("COUNTERS = [\n")
    syntax_error = f"{file}, line 1: SyntaxError: '[' was never closed"
    for command in ("get plays 9f3a --local", "status", "import plays.csv --counter plays"):
        assert error_of(main, command.split(), capsys) == syntax_error
    for line in (["statsu"], ["help", "statsu"]):
        assert error_of(main, line, capsys) == "there is no command 'statsu': did you mean 'status'?; --help says more"
    error = "there is no command 'cost': docs/cost.md in Tally's repository has the bills; --help says more"
    assert error_of(main, ["cost"], capsys) == error
    for line in ("", "--help", "help get", "get --help", "completion bash", "--version"):
        status, printed, err = run_command(capsys, *line.split())
        assert (status, err) == (0, "")
        assert printed


def test_prints_of_counters_py_are_not_in_the_output(
    folder: Path, capsys: pytest.CaptureFixture[str], run: Run
) -> None:
    (folder / "counters.py").write_text(f"print('loaded')\n{init.COUNTERS}")
    code, out, err = run("get", "shares", "a1", "--json")
    assert (code, json.loads(out)["value"], "loaded" in err) == (0, 0, True)


def test_a_deleted_folder_is_an_error_of_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "gone").mkdir()
    os.chdir(folder / "gone")
    (folder / "gone").rmdir()
    for command in ("status", "dev"):
        assert error_of(main, [command], capsys) == "the current folder does not exist: go to another one"


def test_a_counter_that_is_not_listed_is_reported_on_stderr(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "counters.py").write_text(init.COUNTERS.replace(", SHARES])", "])"))
    status, _, err = run_command(capsys, "get", "shares", "a1", "--local")
    note = f"tally: {folder}/counters.py: SHARES is not a counter of this deployment, because COUNTERS does not list it"
    assert (status, err.splitlines()[0]) == (2, note)
    assert run_command(capsys, "help")[2] == ""


def test_pages_are_normalised_as_the_folder_declares(
    folder: Path, capsys: pytest.CaptureFixture[str], run: Run
) -> None:
    pages = "from tally.pages import Pages\nPAGES = Pages(drop=('ref',), trailing_slash='drop')\n"
    (folder / "counters.py").write_text(init.COUNTERS + pages)
    result = run("get", "visits", "https://example.com/a/?ref=x")
    assert result == (0, "visits https://example.com/a: 0, nothing is stored\n", "")


@pytest.mark.parametrize("command", ["deploy", "destroy"])
def test_deploy_and_destroy_without_settings_are_errors_of_one_line(
    folder: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "is missing: go to the folder of your app" in error_of(main, [command], capsys)
    (folder / "cdk.json").write_text("[]")
    assert "is not JSON" in error_of(main, [command], capsys)


def test_a_deploy_with_a_cdn_is_refused_without_a_checkout(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(capsys, "init")[0] == 0
    cdn_options = [part for name, text in BEHIND_CDN.items() for part in ("-c", f"{name}={text}")]
    error = error_of(main, ["deploy", *cdn_options], capsys)
    assert error.startswith("a CDN is a second stack, which only a checkout of Tally has")


def test_the_package_without_extras_says_what_the_command_needs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "tally.cli.commands")
    monkeypatch.setitem(sys.modules, "shtab", None)  # so that `import shtab` fails
    error = error_of(main, ["status"], capsys)
    assert error == "shtab is missing, and the command needs it: install 'tallystick[dev]'"


def test_destroy_refuses_an_unknown_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert error_of(main, ["destroy", "--forse"], capsys) == "unrecognized arguments: --forse; --help says more"


def test_the_cdk_of_the_checkout_or_of_the_path_is_used_or_else_the_pinned_version(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(folder))  # an empty folder
    with pytest.raises(CommandError, match=r"^Node is missing, and `cdk` needs it"):
        account.cdk_command()
    write_tool(folder, "node")
    with monkeypatch.context() as without_cdk:
        without_cdk.setitem(sys.modules, "aws_cdk", None)
        with pytest.raises(CommandError, match=r"^the CDK is missing: install 'tallystick\[cdk\]'$"):
            account.cdk_command()
    pinned = json.loads((ROOT / "package.json").read_text())["peerDependencies"]["aws-cdk"]
    assert account.cdk_command() == ["npx", "--yes", f"aws-cdk@{pinned}"]
    assert f"npx aws-cdk@{pinned} bootstrap" in (ROOT / "docs/adopt.md").read_text()
    write_tool(folder, "cdk")
    assert account.cdk_command() == ["cdk"]
    monkeypatch.setenv("TALLY_APP", str(ROOT))  # as in a checkout
    with monkeypatch.context() as without_cdk:
        without_cdk.setitem(sys.modules, "aws_cdk", None)
        with pytest.raises(CommandError, match=r"^the CDK is missing: run `make setup-cdk`$"):
            account.cdk_command()
    assert account.cdk_command() == [str(ROOT / "node_modules/.bin/cdk")]
    assert shutil.which(account.cdk_command()[0])


def write_tool(folder: Path, name: str) -> None:
    """Write a program that does nothing."""
    (folder / name).write_text("#!/bin/sh\n")
    (folder / name).chmod(0o755)


def test_the_command_to_deploy_is_tally_in_a_folder_and_make_in_a_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    assert destroy.deploy_command("-c stage=prod") == "tally deploy -c stage=prod"
    monkeypatch.setenv("TALLY_APP", str(ROOT))
    assert destroy.deploy_command("-c stage=prod") == 'make deploy ARGS="-c stage=prod"'
