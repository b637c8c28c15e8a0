"""`make generate`: write what follows from the operations, the samples in `events/` and the typed client.

`python -m api --openapi` prints the API document.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import operations
from declarations import OPERATIONS, Declarations
from home import HOME, LAMBDAS
from tally.errors import ConfigurationError

from . import client, declared, document, javascript, samples
from .operation import Operation

EVENTS = HOME / "events"


def files() -> dict[Path, str]:
    """Every file that follows from the operations, with its text."""
    found = {client.FILE: formatted(client.source(OPERATIONS)), **javascript.sources(OPERATIONS)}
    for operation in OPERATIONS:
        for name, event in _events(operation).items():
            path = EVENTS / operation.module / f"{name.replace('_', '-')}.json"
            found[path] = json.dumps(event, indent=2, ensure_ascii=False) + "\n"
    return found


def stale() -> list[Path]:
    """The generated files that are there and follow from no operation."""
    wanted = files()
    return [
        path for name in operations.SERVING for path in sorted((EVENTS / name).glob("*.json")) if path not in wanted
    ]


def _events(operation: Operation) -> dict[str, object]:
    """The direct event, one of the general route, and one of each short route of a counter."""
    general, *others = operation.routes(declared.counters())
    shown = [general, *(route for route in others if route.short)]
    events = {f"http_{route.id}": samples.http(route, declared.counters()) for route in shown}
    return {f"direct_{operation.name}": samples.direct(general, declared.counters()), **events}


def formatted(text: str) -> str:
    """The source as `ruff format` leaves it."""
    command = [sys.executable, "-m", "ruff", "format", "--quiet", "--stdin-filename", str(client.FILE), "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


def main() -> None:
    """Write the files that differ, and remove those that are stale."""
    try:
        Declarations.load(LAMBDAS / "counters.py")
    except ConfigurationError as error:
        sys.exit(f"tally: {error}")
    if "--openapi" in sys.argv[1:]:
        print(document.text(OPERATIONS, declared.counters(), indent=2))
        return
    for path, text in files().items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            print(f"tally: {path.relative_to(EVENTS.parent)} is written")
    for path in stale():
        path.unlink()
        print(f"tally: {path.relative_to(EVENTS.parent)} is removed")


if __name__ == "__main__":
    main()
