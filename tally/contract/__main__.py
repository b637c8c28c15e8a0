"""`make generate` writes what follows from the operations: the samples in `events/` and the typed clients.

`python -m tally.contract --openapi` prints the API document.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Collection, Mapping
from pathlib import Path

from tally import operations
from tally.contract.declarations import OPERATIONS, Declarations
from tally.counter import Counter
from tally.errors import ConfigurationError
from tally.paths import LAMBDAS

from ..api.operation import Operation
from . import client, document, javascript, samples

ROOT = Path(__file__).parents[2]
EVENTS = ROOT / "events"


def files(counters: Mapping[str, Counter]) -> dict[Path, str]:
    """Returns the text of each file that follows from the operations and these counters, by its path."""
    texts = {client.FILE: formatted(client.source(OPERATIONS)), **javascript.sources(OPERATIONS)}
    texts[EVENTS / "bus" / "threshold-crossed.json"] = json.dumps(samples.threshold_event(), indent=2) + "\n"
    for operation in OPERATIONS:
        for name, event in _events(operation, counters).items():
            path = EVENTS / operation.module / f"{name.replace('_', '-')}.json"
            texts[path] = json.dumps(event, indent=2, ensure_ascii=False) + "\n"
    return texts


def stale_files(wanted: Collection[Path]) -> list[Path]:
    """Returns the sample events that no operation has any more."""
    return [
        path for name in operations.SERVING for path in sorted((EVENTS / name).glob("*.json")) if path not in wanted
    ]


def _events(operation: Operation, counters: Mapping[str, Counter]) -> dict[str, object]:
    """Returns a direct event, and HTTP events of the general route and of each short route of a counter, by name. If no
    counter has the operation, there are no events."""
    if not (routes := operation.routes(counters)):
        return {}
    general, *others = routes
    shown = [general, *(route for route in others if route.is_short)]
    events = {f"http_{route.id}": samples.http_event(route, counters) for route in shown}
    return {f"direct_{operation.name}": samples.direct_event(general, counters), **events}


def formatted(text: str) -> str:
    """Returns the source as `ruff format` formats it."""
    command = [sys.executable, "-m", "ruff", "format", "--quiet", "--stdin-filename", str(client.FILE), "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


def main() -> None:
    """Writes the files that differ, and removes the stale ones."""
    try:
        counters = Declarations.load(LAMBDAS / "counters.py").counters
    except ConfigurationError as error:
        sys.exit(f"tally: {error}")
    if "--openapi" in sys.argv[1:]:
        print(document.document_json(OPERATIONS, counters, indent=2))
        return
    wanted = files(counters)
    for path, text in wanted.items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            print(f"tally: {path.relative_to(EVENTS.parent)} is written")
    for path in stale_files(wanted):
        path.unlink()
        print(f"tally: {path.relative_to(EVENTS.parent)} is removed")


if __name__ == "__main__":
    main()
