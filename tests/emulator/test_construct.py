"""In the emulator, the app of docs/adopt.md sells each seat once. The wheel alone builds the app."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.emulator.server import Emulator
from tests.emulator.stack import Stack, rewrite_template, without_unsupported
from tests.emulator.steps import KEY, step
from tests.wheel import adopt_page
from tests.wheel.conftest import UV, python, run, shared, wheel  # noqa: F401 (fixtures)

pytestmark = pytest.mark.long


def test_the_app_of_the_page_sells_each_seat_once(tmp_path: Path, python: Path, wheel: Path) -> None:  # noqa: F811
    with step("synthesize with the wheel"):
        shop, assembly = tmp_path / "shop", tmp_path / "cdk.out"
        adopt_page.write_files(shop)
        client = ("--no-deps", "--target", "checkout", str(wheel))
        run(UV, "pip", "install", "--quiet", "--python", str(python), *client, cwd=shop)
        run(str(python), "app.py", cwd=shop, variables={"CDK_OUTDIR": str(assembly)})
        rewrite_template(assembly, without_unsupported, "Shop")
    with step("start the emulator"):
        emulator = Emulator(tmp_path)
    try:
        sell(Stack(emulator, tmp_path, name="Shop"), assembly)
    finally:
        emulator.stop()


def sell(stack: Stack, assembly: Path) -> None:
    """Deploys, and invokes the team's function twice for a first order and once for a second order, of a seat each."""
    with step("cdk bootstrap, cdk deploy") as notes:
        stack.bootstrap()
        stack.cdk("deploy", "--method=direct", "--require-approval=never", "--app", str(assembly))
        notes.append(f"{len(stack.resources())} resources")
    with step("three orders of the team's function: two seats are sold"):
        orders = [{"flight": "LH400", "order": key} for key in (KEY, KEY, KEY[::-1])]
        answers = [stack.invoke(stack.outputs["CheckoutName"], order) for order in orders]
        assert answers[1]["replayed"]  # the client may also have retried the first or the last order
        event = {"operation": "get_counter", "counter": "seats", "id": "LH400"}
        assert stack.invoke(stack.outputs["TallyReadsFunctionArn"], event)["body"]["value"] == 180 - 2
