"""Compares this checkout's stacks with another checkout's: `.venv/bin/python -m tests.templates OTHER`.

The module synthesizes four stacks in both checkouts: dev, prod, prod with many options, and the stack behind a CDN.
Then it prints each difference except hashes of assets and of versions of functions, and the version of the code. The
exit status is 1 if there is a difference.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
_SYNTHESIZE = """
import sys
sys.path[:0] = [".", "lambdas"]
import app
from tests.infra.conftest import BEHIND_CDN, LAVISH, UNBUNDLED, context_of_cdk_json
prod = {"stage": "prod"}
for name, context in {"dev": {}, "prod": prod, "lavish": {**LAVISH, **prod}, "behind_cdn": BEHIND_CDN}.items():
    app.build({**context_of_cdk_json(), **UNBUNDLED, **context}, f"{sys.argv[1]}/{name}").synth()
"""
_HASHES = (
    (re.compile(r"(CurrentVersion[0-9A-F]{8})[0-9a-f]{32}"), r"\1"),  # the logical id of a version of a function
    (re.compile(r"\b[0-9a-f]{64}\b"), "asset"),
    (re.compile(r"(?<![0-9a-zA-Z])[0-9a-f]{12}(?![0-9a-zA-Z])"), "version"),  # of the code, as GET /health shows it
)


def read_templates(checkout: Path, out: Path) -> dict[str, dict[str, str]]:
    """Returns the values in the templates of a checkout, by stack and place, without hashes."""
    variables = {**os.environ, "JSII_SILENCE_WARNING_END_OF_LIFE_NODE_VERSION": "20"}
    subprocess.run([sys.executable, "-c", _SYNTHESIZE, str(out)], cwd=checkout, env=variables, check=True)
    paths = sorted(out.rglob("*.template.json"))
    return {
        str(path.relative_to(out)): dict(_places_and_values(json.loads(_without_hashes(path.read_text()))))
        for path in paths
    }


def _without_hashes(text: str) -> str:
    for pattern, replacement in _HASHES:
        text = pattern.sub(replacement, text)
    return text


def _places_and_values(value: object, path: str = "") -> Iterator[tuple[str, str]]:
    """Yields each text, number and boolean with its place: `/Resources/Api/Type`."""
    if isinstance(value, dict | list):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _places_and_values(part, f"{path}/{key}")
    else:
        yield path, str(value)


def main() -> int:
    """Print each place that differs. Returns 1 if a place differs."""
    with tempfile.TemporaryDirectory() as folder:
        before = read_templates(Path(sys.argv[1]), Path(folder, "before"))
        after = read_templates(ROOT, Path(folder, "after"))
    differences = 0
    for stack in sorted({*before, *after}):
        old, new = before.get(stack, {}), after.get(stack, {})
        places = sorted(place for place in {*old, *new} if old.get(place) != new.get(place))
        print(f"{stack}: {len(new)} values, {len(places)} differ")
        for place in places:
            print(f"  {place}: {old.get(place)} -> {new.get(place)}")
        differences += len(places)
    return min(differences, 1)


if __name__ == "__main__":
    sys.exit(main())
