"""The whole stack, deployed by the real `cdk` into an emulator of AWS.

It shows that references meet, that functions run from the uploaded bundle and that tokens pass the authorizer. It does
not show that AWS accepts the stack (docs/unproven.md). `make emulator` goes on from here, to the end of the stack.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.emulator.server import Emulator
from tests.emulator.stack import Stack, synthesize
from tests.emulator.steps import begin

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]  # a loaded machine; alone it takes 10 to 15 s


def test_the_stack_deploys_counts_and_deploys_again_without_changes(tmp_path: Path) -> None:
    assembly = synthesize(tmp_path / "assembly")
    emulator = Emulator(tmp_path)
    try:
        begin(Stack(emulator, tmp_path), assembly)
    finally:
        emulator.stop()
