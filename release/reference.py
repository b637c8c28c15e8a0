"""Writes docs/reference.md: tables of what the code declares. `make generate` runs it."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any

from tally import counter, errors, items, notify, observe, pages
from tally.cdk import options

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference.md"
HEAD = """# Reference

`make generate` writes this page from the docstrings in the code.

* The HTTP API: `/openapi.json` of every stack, `/dev/openapi` under `make dev`.
* The command: `tally help`, `tally help COMMAND`.
* The alarms: [the runbook](runbook.md#find-your-alarm).
"""
CLASSES = (
    (counter.Counter, counter, '`counters.py` declares counters with these fields: `Counter("likes", prefix=…)`.'),
    (items.Items, items, "The items of [your own table](team-tables.md) that a counter counts."),
    (items.Watch, items, "A number that your own code keeps: `Watched(name, table=…, items=Items(…), …)` declares it."),
    (notify.Notify, notify, "The thresholds of a counter, up to 16."),
    (pages.Pages, pages, "What is not part of a page's name. `counters.py` declares it as `PAGES`."),
)
ABOUT = {
    "Options": "`-c name=value` of `make deploy`, or the context in `cdk.json`. An argument of the construct"
    " `Tally(…)` has the same name in snake_case, and takes a list, a number or a boolean.",
    "Metrics": "The namespace is `Tally`, and the dimension `service` is the name of the stack. A metric that"
    " begins with \"By\" has one more dimension: `counter`, `consumer` or `version`.",
    "Problems": "Answers of the type `application/problem+json` (RFC 9457). `type` is `urn:problem-type:tally:` and the"
    " type below. After a 503, send the request again unchanged, with the same key, after `Retry-After`.",
}  # fmt: skip
DEFAULT_CHARACTERS_MAX = 24  # of a default; in place of a longer default the page has the name of its constant


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Returns a table in Markdown. `docs/….md` in a cell becomes a link."""
    lines = [" | ".join(cell.replace("|", r"\|") for cell in line) for line in (head, ("---",) * len(head), *rows)]
    return re.sub(r"\bdocs/([\w-]+)\.md", r"[\1](\1.md)", "".join(f"| {line} |\n" for line in lines))


def assignments(body: list[ast.stmt]) -> Iterator[tuple[str, ast.expr | None, str]]:
    """Yields name, value and docstring of each assignment; "" for a missing docstring."""
    for node, after in zip(body, [*body[1:], None], strict=True):
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(target, ast.Name):
            is_text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            text = str(after.value.value) if is_text else ""  # type: ignore[union-attr]
            yield target.id, node.value, " ".join(text.split())


def fields_of(cls: type) -> list[tuple[str, ast.expr | None, str]]:
    """Returns the fields of a dataclass, as `assignments` yields them."""
    [node] = ast.parse(inspect.getsource(cls)).body
    assert isinstance(node, ast.ClassDef)
    names = {field.name for field in fields(cls)}
    return [assignment for assignment in assignments(node.body) if assignment[0] in names]


def class_table(cls: type, module: ModuleType) -> str:
    """Returns the table of the fields of a class that `counters.py` uses."""
    rows = [(f"`{name}`", _format_default(value, module), text) for name, value, text in fields_of(cls)]
    return table(("field", "default", "meaning"), rows)


def _format_default(value: ast.expr | None, module: ModuleType) -> str:
    if value is None:
        return "required"
    if isinstance(value, ast.Call):
        return "`{}`"  # a field(default_factory=dict)
    text = ast.unparse(value)
    spelled_out = repr(getattr(module, text)) if isinstance(value, ast.Name) else text
    return f"`{spelled_out if len(spelled_out) <= DEFAULT_CHARACTERS_MAX else text}`"


def options_table() -> str:
    """Returns the table of the options of a deployment."""
    prod, dev = options.Options(stage=options.PROD_STAGE), options.Options()
    context_names = {field.name: options._context_name(field) for field in fields(options.Options)}
    rows = []
    for name, _, text in fields_of(options.Options):
        in_prod, in_dev = (_format_value(getattr(values, name)) for values in (prod, dev))
        differs = in_prod != in_dev and name != "stage"
        default = f"{in_prod}; in `dev` {in_dev}" if differs else in_dev
        text = re.sub(r"`(\w+_\w+)`", lambda match: f"`{context_names.get(match[1], match[1])}`", text)
        rows.append((f"`{context_names[name]}`", default, text))
    return table(("option", "default", "meaning"), rows)


def _format_value(value: Any) -> str:
    value = getattr(value, "value", value)
    if value in ("", None, ()):
        return "none"
    if isinstance(value, tuple):
        return f"`{','.join(value)}`"
    text = str(value)
    return f"`{text.lower() if text.isupper() or isinstance(value, bool) else text}`"


def metrics() -> list[tuple[str, str]]:
    """Returns the written metrics, and their docstrings. Of the other constants, only NAMESPACE has a capital."""
    written = assignments(ast.parse(inspect.getsource(observe)).body)
    texts = [(value.value, text) for _, value, text in written if isinstance(value, ast.Constant)]
    return [(str(name), text) for name, text in texts if str(name)[:1].isupper() and name != observe.NAMESPACE]


def problems(base: type[errors.TallyError] = errors.TallyError) -> Iterator[type[errors.TallyError]]:
    """Yields the error classes of the problems that a caller may get. An error that Tally catches has no slug."""
    for error in base.__subclasses__():
        if error.__module__ == errors.__name__:
            if "slug" in vars(error) and error is not errors.RetryableError:  # which is only a base class
                yield error
            yield from problems(error)


def problems_table() -> str:
    """Returns the table of the problem types, by status."""
    rows = [(str(error.status), f"`{error.slug}`", _docstring(error)) for error in problems()]
    return table(("status", "type", "when"), sorted(rows))


def _docstring(cls: type) -> str:
    return " ".join((vars(cls)["__doc__"] or "").split())


def page() -> str:
    """Returns the text of docs/reference.md."""
    parts = {cls.__name__: f"{about}\n\n{class_table(cls, module)}" for cls, module, about in CLASSES}
    tables = {
        "Options": options_table(),
        "Metrics": table(("metric", "meaning"), [(f"`{name}`", text) for name, text in metrics()]),
        "Problems": problems_table(),
    }
    parts |= {name: f"{ABOUT[name]}\n\n{text}" for name, text in tables.items()}
    return HEAD + "".join(f"\n## {title}\n\n{text}" for title, text in parts.items())


def undocumented() -> list[str]:
    """Returns the names of the fields, options, metrics and problems without a docstring, for a test."""
    classes = [*(cls for cls, _, _ in CLASSES), options.Options]
    texts = {f"{cls.__name__}.{name}": text for cls in classes for name, _, text in fields_of(cls)}
    texts |= dict(metrics()) | {error.__name__: _docstring(error) for error in problems()}
    return [name for name, text in texts.items() if not text]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
