"""A folder without a checkout: what `init` writes, and what the command says in a folder that has nothing."""

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
from tests.commands import one_line, run_command
from tests.environments import ROOT
from tests.infra.conftest import BEHIND_CDN
from tests.integration.command.numbers import Run


@pytest.fixture(autouse=True)
def team(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The present folder: empty, and no checkout."""
    monkeypatch.delenv("TALLY_APP", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_init_writes_counters_that_are_right(team: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, printed, _ = run_command(capsys, "init", "shop")
    assert (status, printed.splitlines()[0]) == (0, "wrote shop/counters.py, shop/app.py, shop/cdk.json")
    found = Declarations.load(team / "shop/counters.py")
    assert "POST /articles/{id}/shares" in {route.key for route in found.routes}
    settings = json.loads((team / "shop/cdk.json").read_text())
    assert settings["app"].endswith("_NODE_VERSION=20,22 python3 app.py"), "the CDK prints no page about their age"
    assert settings["context"] == json.loads((ROOT / "cdk.json").read_text())["context"]


def test_init_overwrites_nothing_and_writes_all_or_nothing(team: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = f"{init.COUNTERS}# mine"
    (team / "counters.py").write_text(mine)
    for beside in ([], ["cdk.json"]):
        for name in beside:
            (team / name).write_text(mine)
        assert one_line(main, ["init", "."], capsys) == "nothing is written: counters.py already exists"
        assert {path.name: path.read_text() for path in team.iterdir()} == dict.fromkeys(("counters.py", *beside), mine)
    assert one_line(main, ["init", "counters.py"], capsys) == "the files cannot be written to counters.py: File exists"


@pytest.mark.parametrize("of_app", [["app.py"], ["cdk.json"], ["app.py", "cdk.json"]])
def test_init_beside_an_app_writes_the_counters_and_says_what_to_add(
    team: Path, of_app: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    mine = "import aws_cdk  # mine"
    for name in of_app:
        (team / name).write_text(mine)
    status, printed, _ = run_command(capsys, "init")
    lines = printed.splitlines()
    assert (status, lines[0]) == (0, "wrote counters.py")
    assert lines[1].startswith(f"this folder has your {' and '.join(of_app)}, which stays. ")
    assert lines[2:4] == ["  from tally.cdk import Tally", '  Tally(self, "Tally", counters="counters.py")']
    assert {path.name: path.read_text() for path in team.iterdir()} == {
        "counters.py": init.COUNTERS, **dict.fromkeys(of_app, mine),
    }  # fmt: skip


def test_init_beside_an_app_that_is_none_of_the_cdk_writes_nothing(
    team: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (team / "app.py").write_text("import flask")
    said = "nothing is written: app.py exists, and is not an app of the CDK: `tally init NAME` makes a folder beside it"
    assert one_line(main, ["init"], capsys) == said
    assert [path.name for path in team.iterdir()] == ["app.py"]
    assert (
        run_command(capsys, "init", "tally")[1].splitlines()[0]
        == "wrote tally/counters.py, tally/app.py, tally/cdk.json"
    )


def test_commands_read_the_counters_of_the_folder(team: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert one_line(main, ["get", "shares", "a1", "--local"], capsys).startswith("argument COUNTER: there is no")
    assert run_command(capsys, "init")[0] == 0
    assert one_line(main, ["get", "shares", "a1", "--local", "--port", "1"], capsys).startswith("nothing answers")


def test_a_folder_without_counters_is_one_line(team: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = f"{team}/counters.py is missing: go to the folder of your counters, or run `tally init`"
    assert one_line(main, ["get", "plays", "v", "--local"], capsys) == said
    assert said in one_line(main, ["get", "shares", "v", "--local"], capsys)
    assert one_line(main, ["dev"], capsys) == said


def test_a_wrong_file_is_one_line_where_it_matters_and_help_goes_on(
    team: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = team / "counters.py"
    file.write_text("COUNTERS = [\n")
    wrong = f"{file}, line 1: SyntaxError: '[' was never closed"
    for command in ("get plays 9f3a --local", "status", "import plays.csv --counter plays"):
        assert one_line(main, command.split(), capsys) == wrong
    for line in (["statsu"], ["help", "statsu"]):
        assert one_line(main, line, capsys) == "there is no command 'statsu': did you mean 'status'?; --help says more"
    said = "there is no command 'cost': docs/cost.md in Tally's repository has the bills; --help says more"
    assert one_line(main, ["cost"], capsys) == said
    for works in ("", "--help", "help get", "get --help", "completion bash", "--version"):
        status, printed, beside = run_command(capsys, *works.split())
        assert (status, beside) == (0, "")
        assert printed


def test_prints_of_counters_py_are_not_in_an_answer(team: Path, capsys: pytest.CaptureFixture[str], run: Run) -> None:
    (team / "counters.py").write_text(f"print('loaded')\n{init.COUNTERS}")
    code, out, beside = run("get", "shares", "a1", "--json")
    assert (code, json.loads(out)["value"], "loaded" in beside) == (0, 0, True)


def test_a_folder_that_is_gone_is_one_line(team: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (team / "gone").mkdir()
    os.chdir(team / "gone")
    (team / "gone").rmdir()
    for command in ("status", "dev"):
        assert one_line(main, [command], capsys) == "the current folder does not exist: go to another one"


def test_a_counter_that_is_not_listed_is_said_beside_the_answer(team: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (team / "counters.py").write_text(init.COUNTERS.replace(", SHARES])", "])"))
    status, _, beside = run_command(capsys, "get", "shares", "a1", "--local")
    said = f"tally: {team}/counters.py: SHARES is not a counter of this deployment, because COUNTERS does not list it"
    assert (status, beside.splitlines()[0]) == (2, said)
    assert run_command(capsys, "help")[2] == ""


def test_pages_are_named_as_the_folder_declares(team: Path, capsys: pytest.CaptureFixture[str], run: Run) -> None:
    dropping = "from tally.pages import Pages\nPAGES = Pages(drop=('ref',), trailing_slash='drop')\n"
    (team / "counters.py").write_text(init.COUNTERS + dropping)
    shown = run("get", "visits", "https://example.com/a/?ref=x")
    assert shown == (0, "visits https://example.com/a: 0, nothing is stored\n", "")


@pytest.mark.parametrize("command", ["deploy", "destroy"])
def test_deploy_without_settings_is_one_line(team: Path, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "is missing: go to the folder of your app" in one_line(main, [command], capsys)
    (team / "cdk.json").write_text("[]")
    assert "is not JSON" in one_line(main, [command], capsys)


def test_a_cdn_is_refused_and_not_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(capsys, "init")[0] == 0
    cdn = [part for name, text in BEHIND_CDN.items() for part in ("-c", f"{name}={text}")]
    said = one_line(main, ["deploy", *cdn], capsys)
    assert said.startswith("a CDN is a second stack, which only a checkout of Tally has")


def test_the_bare_package_says_what_the_command_needs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "tally.cli.commands")
    monkeypatch.setitem(sys.modules, "shtab", None)
    said = one_line(main, ["status"], capsys)
    assert said == "shtab is missing, and the command needs it: install 'tallystick[dev]'"


def test_an_option_that_nobody_knows_is_refused_by_who_passes_nothing_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert one_line(main, ["destroy", "--forse"], capsys) == "unrecognized arguments: --forse; --help says more"


def test_cdk_is_the_one_on_the_path_or_the_pinned_one(team: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(team))
    with pytest.raises(CommandError, match=r"^Node is missing, and `cdk` needs it"):
        account.cdk_command()
    tool(team, "node")
    with monkeypatch.context() as bare:
        bare.setitem(sys.modules, "aws_cdk", None)
        with pytest.raises(CommandError, match=r"^the CDK is missing: install 'tallystick\[cdk\]'$"):
            account.cdk_command()
    pinned = json.loads((ROOT / "package.json").read_text())["peerDependencies"]["aws-cdk"]
    assert account.cdk_command() == ["npx", "--yes", f"aws-cdk@{pinned}"]
    assert f"npx aws-cdk@{pinned} bootstrap" in (ROOT / "docs/adopt.md").read_text()
    tool(team, "cdk")
    assert account.cdk_command() == ["cdk"]
    monkeypatch.setenv("TALLY_APP", str(ROOT))
    with monkeypatch.context() as bare:
        bare.setitem(sys.modules, "aws_cdk", None)
        with pytest.raises(CommandError, match=r"^the CDK is missing: run `make setup-cdk`$"):
            account.cdk_command()
    assert account.cdk_command() == [str(ROOT / "node_modules/.bin/cdk")]
    assert shutil.which(account.cdk_command()[0])


def tool(folder: Path, name: str) -> None:
    (folder / name).write_text("#!/bin/sh\n")
    (folder / name).chmod(0o755)


def test_the_way_back_is_a_command_of_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    assert destroy.deploy_command("-c stage=prod") == "tally deploy -c stage=prod"
    monkeypatch.setenv("TALLY_APP", str(ROOT))
    assert destroy.deploy_command("-c stage=prod") == 'make deploy ARGS="-c stage=prod"'
