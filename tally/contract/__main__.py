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

from . import client, document, javascript, samples

ROOT = Path(__file__).parents[2]
EVENTS = ROOT / "events"


def files(counters: Mapping[str, Counter]) -> dict[Path, str]:
    """Returns the text of each file that follows from the operations and these counters, by its path."""
    texts = {client.FILE: formatted(client.source(OPERATIONS)), **javascript.sources(OPERATIONS)}
    texts[EVENTS / "bus" / "threshold-crossed.json"] = json.dumps(samples.threshold_event(), indent=2) + "\n"
    for operation in OPERATIONS:
        routes = operation.routes(counters)
        # The first route, which is the general route if the operation has one, and each short route have a sample.
        sampled = [route for index, route in enumerate(routes) if index == 0 or route.is_short]
        events = {f"http_{route.id}": samples.http_event(route, counters) for route in sampled}
        if routes:
            events[f"direct_{operation.name}"] = samples.direct_event(routes[0], counters)
        for name, event in events.items():
            path = EVENTS / operation.module / f"{name.replace('_', '-')}.json"
            texts[path] = json.dumps(event, indent=2, ensure_ascii=False) + "\n"
    return texts


def stale_files(wanted: Collection[Path]) -> list[Path]:
    """Returns the sample events that are not in `wanted`, such as events of a removed operation."""
    present = [path for module in operations.SERVING for path in sorted((EVENTS / module).glob("*.json"))]
    return [path for path in present if path not in wanted]


def formatted(text: str) -> str:
    """Returns the source as `ruff format` formats it."""
    command = [sys.executable, "-m", "ruff", "format", "--quiet", "--stdin-filename", str(client.FILE), "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


def main() -> None:
    """Writes the files that differ, and removes stale files."""
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
