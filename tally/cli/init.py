"""The command `init`: makes a folder with counters, which runs and deploys without a checkout."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path

from .command import Command
from .terminal import BAD, CommandError, note

_BUNDLED_CDK_JSON = Path(__file__).with_name("cdk.json")  # only a wheel has this file
CDK_JSON = _BUNDLED_CDK_JSON if _BUNDLED_CDK_JSON.is_file() else Path(__file__).parents[2] / "cdk.json"
COUNTERS = '''"""The counters of this deployment. `tally dev` loads a change at once; `tally deploy` deploys it.

Add a declaration to COUNTERS: the routes, the roles, the metrics and the API document follow from it.
`help(tally.counter.Counter)` explains the fields; importing this file checks them.
"""

from tally.counter import ANYONE, Counter, declared
from tally.builtin import BOT_VISITS, LIKES, PLAYS, VISITS

SHARES = Counter(
    "shares", prefix="ARTICLE", sort_key="SHARES", attribute="shares", delta=1, changes=ANYONE, read=ANYONE,
    path="/articles/{id}/shares",
)  # fmt: skip

COUNTERS = declared([PLAYS, LIKES, VISITS, BOT_VISITS, SHARES])
'''
APP = '''"""A stack with Tally in it. `tally deploy` deploys it; options are arguments of it: `-c stage=prod`."""

from aws_cdk import App, Stack
from tally.cdk import Options, Tally

app = App()
options = Options.from_context(app.node.get_all_context())
stack = Stack(app, "Tally", stack_name=f"Tally-{options.stage}", termination_protection=options.keeps_data)
Tally(stack, "Default", counters="counters.py", options=options)
app.synth()
'''
NEXT_STEPS_TEXT = """next{where}:
  tally dev      # runs the whole stack on this machine, until Ctrl-C
  tally deploy   # deploys it to the AWS account of your credentials (needs Node, and tallystick[cdk])"""
APP_FILES = ("app.py", "cdk.json")
EXISTING_APP_TEXT = """\
this folder has your {files}, which stays. Add these lines to a stack of your app, in Python (needs tallystick[cdk]):
  from tally.cdk import Tally
  Tally(self, "Tally", counters="counters.py")
then `cdk deploy` deploys it as before, and `tally dev` runs Tally on this machine"""


def file_texts() -> dict[str, str]:
    """Returns the text of each file, by name. cdk.json has the settings of CDK with which Tally is tested."""
    settings = json.loads(CDK_JSON.read_text(encoding="utf-8"))
    settings["app"] = settings["app"].replace(".venv/bin/python", "python3")
    return {"counters.py": COUNTERS, "app.py": APP, "cdk.json": json.dumps(settings, indent=2) + "\n"}


def add_arguments(parser: argparse.ArgumentParser, _: object = None) -> None:
    """Adds the argument FOLDER."""
    parser.add_argument("folder", metavar="FOLDER", nargs="?", default=".", help="the folder (default: this one)")


def init(args: argparse.Namespace) -> int:
    """Writes the files; if the folder has an app, only counters.py. If one of these exists, raises CommandError."""
    folder = Path(args.folder)
    try:
        app_files = [name for name in APP_FILES if os.path.lexists(folder / name)]
        if app_files == ["app.py"] and b"aws_cdk" not in (folder / "app.py").read_bytes():
            hint = "`tally init NAME` makes a folder beside it"
            raise CommandError(f"nothing is written: {folder / 'app.py'} exists, and is not an app of the CDK: {hint}")
        written = {folder / name: text for name, text in file_texts().items() if not app_files or name not in APP_FILES}
        existing = [str(path) for path in written if os.path.lexists(path)]
        if existing:
            raise CommandError(f"nothing is written: {', '.join(existing)} already exists")
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in written.items():
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CommandError(f"the files cannot be written to {folder}: {error.strerror or error}") from None
    print(f"wrote {', '.join(map(str, written))}")
    where = "" if args.folder == "." else f", in {folder}"
    print(EXISTING_APP_TEXT.format(files=" and ".join(app_files)) if app_files else NEXT_STEPS_TEXT.format(where=where))
    return 0


def run_bare(arguments: Sequence[str]) -> int:
    """Runs `uvx tallystick init [FOLDER]`, the only command that needs no extras, and returns its exit status."""
    if arguments[:1] != ["init"]:
        note("shtab is missing, and the command needs it: install 'tallystick[dev]'")
        return BAD
    parser = argparse.ArgumentParser(prog="tallystick init", description=INIT.description)
    add_arguments(parser)
    try:
        init(parser.parse_args(arguments[1:]))
    except CommandError as error:
        note(str(error))
        return BAD
    print("The command `tally` comes with: uv tool install 'tallystick[cdk,dev]'")
    return 0


INIT = Command("init", init, add_arguments, examples="  tally init shop && cd shop && tally dev")
