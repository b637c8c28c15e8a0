"""Names of rooms in a source, rewritten for their place in the package: `from api.kinds import X` becomes
`from tally._rooms.api.kinds import X`.

A team's own app has folders called `stacks`, `api` or `cli`. In the wheel nothing but `tally` is at the top.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from typing import TypeGuard

PLACE = "tally._rooms"
Edit = tuple[int, int, str]
"""From this byte to that one, this text comes instead."""


class RewriteError(Exception):
    """A name cannot be rewritten. The message is one line: file, line and what to write instead."""


def rewritten(name: str, source: str, modules: Collection[str]) -> str:
    """The source with every import of a room in its new place. `modules`: the dotted names of all modules of the rooms.

    `name` is that of the file, for errors. Raises RewriteError for an import that has no fixed name.
    """
    raw = source.encode()
    starts = [0]
    for line in raw.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for start, end, text in sorted(_Edits(name, raw, starts, modules).all(), reverse=True):
        raw = raw[:start] + text.encode() + raw[end:]
    return raw.decode()


class _Edits:
    """What to change in one source, by the positions of its syntax tree."""

    def __init__(self, name: str, raw: bytes, starts: list[int], modules: Collection[str]) -> None:
        self._name, self._raw, self._starts, self._modules = name, raw, starts, modules
        self._rooms = {module.partition(".")[0] for module in modules}

    def all(self) -> Iterator[Edit]:
        nodes = list(ast.walk(ast.parse(self._raw)))
        for node in nodes:
            if isinstance(node, ast.ImportFrom) and node.level == 0 and self._of_room(node.module or ""):
                yield self._after(node, b"from ", f"{PLACE}.")
            elif isinstance(node, ast.Import):
                yield from self._plain(node)
            elif _imports(node):
                yield from self._by_name(node.args[0])
        imported = {id(part) for node in nodes if _imports(node) for part in ast.walk(node.args[0])}
        for node in nodes:
            if id(node) not in imported and self._names_a_module(node):
                raise self._error(node, "a text names a module: import it, or take its name from __package__")

    def _names_a_module(self, node: ast.AST) -> bool:
        """`"cli.commands"`, and what begins as `f"operations.{…}"` does."""
        if isinstance(node, ast.JoinedStr):
            first = node.values[0] if node.values else None
            text = str(first.value) if isinstance(first, ast.Constant) else ""
            dotted = all(part.isidentifier() for part in text.removesuffix(".").split("."))  # `operations.md#` is none
            return "." in text and dotted and self._of_room(text)
        return isinstance(node, ast.Constant) and "." in str(node.value) and node.value in self._modules

    def _of_room(self, module: str) -> bool:
        return module.partition(".")[0] in self._rooms

    def _plain(self, node: ast.Import) -> Iterator[Edit]:
        """`import operations`, which binds the room's own name."""
        if not any(self._of_room(alias.name) for alias in node.names):
            return
        if len(node.names) > 1 or "." in node.names[0].name:
            raise self._error(node, "write `from room import module`, one statement for each room")
        start = self._at(node)
        yield start, start, f"from {PLACE} "

    def _by_name(self, argument: ast.expr) -> Iterator[Edit]:
        """`import_module("operations.visits")`, and with a text that begins so."""
        first = argument.values[0] if isinstance(argument, ast.JoinedStr) and argument.values else argument
        if not isinstance(first, ast.Constant) or not isinstance(first.value, str):
            raise self._error(argument, "import_module needs a text that begins with the name of a room")
        if self._of_room(first.value):
            quote = b'f"' if isinstance(argument, ast.JoinedStr) else b'"'
            yield self._after(argument, quote, f"{PLACE}.")

    def _after(self, node: ast.stmt | ast.expr, begins: bytes, text: str) -> Edit:
        """Insert text after what the node begins with."""
        start = self._at(node)
        if not self._raw.startswith(begins, start):
            raise self._error(node, f"this must begin with {begins.decode()!r}")
        return start + len(begins), start + len(begins), text

    def _at(self, node: ast.stmt | ast.expr) -> int:
        return self._starts[node.lineno - 1] + node.col_offset

    def _error(self, node: ast.AST, what: str) -> RewriteError:
        return RewriteError(f"{self._name}:{getattr(node, 'lineno', 0)}: {what}")


def _imports(node: ast.AST) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module")
