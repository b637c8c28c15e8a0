"""The OpenAPI document is valid, whole, and says of inputs what `tally/fields.py` checks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from openapi_spec_validator import OpenAPIV31SpecValidator

from counters import COUNTERS, PAGES
from tally import errors
from tally.api import kinds
from tally.api.http import media_types
from tally.api.kinds import FieldContext, SchemaContext, Source
from tally.api.operation import Field, Route, UserVisibility
from tally.contract.declarations import OPERATIONS
from tally.contract.document import document, document_json
from tally.counter import Counter, declared

ROOT = Path(__file__).parent.parent.parent
DOCUMENT = document(OPERATIONS, COUNTERS)
ROUTES = [route for one in OPERATIONS for route in one.routes(COUNTERS)]


def documented() -> Iterator[tuple[Route, dict[str, Any]]]:
    for route in ROUTES:
        yield route, DOCUMENT["paths"][route.path][route.method.lower()]


def resolved(part: dict[str, Any]) -> dict[str, Any]:
    found: Any = DOCUMENT
    for name in part.get("$ref", "#/").removeprefix("#/").split("/"):
        found = found[name] if name else part
    return found  # type: ignore[no-any-return]


def validator(schema: dict[str, Any]) -> Draft202012Validator:
    return Draft202012Validator({**schema, "components": DOCUMENT["components"]})


def test_it_is_valid_openapi_3_1() -> None:
    OpenAPIV31SpecValidator(DOCUMENT).validate()  # type: ignore[arg-type]
    assert json.loads(document_json(OPERATIONS, COUNTERS)) == DOCUMENT


def test_it_says_who_sees_likers() -> None:
    path = "/counters/likes/{id}/children"
    listed = {**COUNTERS, "likes": replace(COUNTERS["likes"], lists="anyone")}
    shown_to_all = document(OPERATIONS, listed)
    assert shown_to_all["paths"].keys() - DOCUMENT["paths"].keys() == {path, "/top"}
    assert shown_to_all["paths"][path]["get"]["security"] == []
    hidden = document(OPERATIONS, listed, likers=UserVisibility.NOBODY)
    assert shown_to_all["paths"].keys() - hidden["paths"].keys() == {path}
    signed_in = document(OPERATIONS, listed, likers=UserVisibility.SIGNED_IN)
    assert signed_in["paths"].keys() == shown_to_all["paths"].keys()
    shown = signed_in["paths"][path]["get"]
    assert (shown["security"], "401" in shown["responses"]) == ([{"token": []}], True)
    assert "A signed-in caller may call it." in shown["description"]


def test_who_may_call_an_operation_is_said() -> None:
    for route, made in documented():
        scopes = [{"token": [route.scope] if route.scope else []}]
        assert made["security"] == (scopes if route.needs_caller else []), route.id
        assert ("401" in made["responses"]) == route.needs_caller
        assert ("403" in made["responses"]) >= (route.scope is not None)


def test_the_inputs_of_an_operation_are_those_that_it_declares() -> None:
    for route, made in documented():
        parameters = {(parameter["in"], parameter["name"]) for parameter in made.get("parameters", [])}
        elsewhere = (Source.BODY, Source.ADDRESS)
        wanted = {(field.source.value, field.http_name) for field in route.fields if field.source not in elsewhere}
        if route.operation.has_counter_in_path and not any(
            counter.period for counter in route.served_counters(COUNTERS)
        ):
            wanted -= {("query", "period")}
        implied = {("header", "User-Agent"), ("header", "If-None-Match")}
        assert parameters - implied == wanted - implied, route.id
        assert (("header", "If-None-Match") in parameters) == route.is_cacheable
        body = made.get("requestBody", {"content": {}})["content"]
        assert bool(body) == any(field.source is Source.BODY or field.kind.body_name for field in route.fields)
        schema = resolved(next(iter(body.values()), {}).get("schema", {}))
        needed = {field.http_name for field in route.fields if field.required and field.source is Source.BODY}
        if route.operation.name == "increment" and all(one.delta is None for one in route.served_counters(COUNTERS)):
            needed.add("amount")
        assert not body or set(schema.get("required", [])) == needed, route.id
        beacons = route.operation.name in ("visit", "increment")
        assert ("text/plain" in body) == ("text/plain" in media_types(route)) == beacons


def exact() -> list[tuple[str, Route, Field]]:
    """A field of each kind whose schema says all that is checked, in each way that it is documented."""
    found: dict[tuple[int, bool], tuple[str, Route, Field]] = {}
    looser = {
        kinds.PAGE,
        kinds.PAGE_OF_LISTED_HOST,
        kinds.CURSOR,
        kinds.USER_AGENT,
        kinds.TIME,
        kinds.UNTIL,
        kinds.CHANGES,
    }
    for route in ROUTES:
        for field in route.fields:
            if field.kind not in looser | {kinds.CHILD_NAME, kinds.CALLER, kinds.ZONE}:
                name = f"{route.id}-{field.name}"
                found.setdefault((id(field.kind), route.needs_caller), (name, route, field))
    return list(found.values())


def accepted(route: Route, field: Field, value: object) -> bool:
    try:
        field.kind.parse(
            value, field.http_name, FieldContext(not route.needs_caller, frozenset({"*"}), COUNTERS, PAGES)
        )
    except errors.CallerError:
        return False
    return True


def schema_of(route: Route, field: Field) -> dict[str, Any]:
    return field.kind.schema_for(SchemaContext(route.served_counters(COUNTERS), anonymous=not route.needs_caller))


def near(schema: dict[str, Any]) -> st.SearchStrategy[object]:
    """Values within a schema, on its bounds and just beyond; ASCII, for a schema counts characters and Tally bytes."""
    if schema["type"] == "array":
        least, most = schema["minItems"], schema["maxItems"]
        lists = st.lists(near(schema["items"]), min_size=least - 1, max_size=3)
        return lists | st.sampled_from([["a91f"] * length for length in (least - 1, most, most + 1)]) | st.just("a91f")
    if "enum" in schema:
        return st.sampled_from([*schema["enum"], *(f"{value}x" for value in schema["enum"]), "", "visits"])
    if schema["type"] == "boolean":
        return st.booleans() | st.sampled_from([0, 1, "", "True", None])  # a query has `true`: schemathesis sends it
    if schema["type"] == "integer":
        bounds = (schema["minimum"], schema["maximum"])
        return st.integers() | st.sampled_from([bound + step for bound in bounds for step in (-1, 0, 1)])
    longest = schema.get("maxLength", 40)
    lengths = [schema.get("minLength", 1) - 1, schema.get("minLength", 1), longest, longest + 1]
    some = st.text(st.characters(max_codepoint=126, categories=["L", "N", "P", "S", "Zs"]), max_size=40)
    some |= st.sampled_from(["a", "Z9", ","]).flatmap(lambda one: st.sampled_from([one * length for length in lengths]))
    return some | st.from_regex(re.compile(schema["pattern"])) if "pattern" in schema else some


@pytest.mark.parametrize(("name", "route", "field"), exact(), ids=[name for name, *_ in exact()])
@settings(max_examples=30)
@given(data=st.data())
def test_a_schema_takes_what_the_check_takes(name: str, route: Route, field: Field, data: Any) -> None:
    schema = schema_of(route, field)
    value = data.draw(near(schema))
    if any(isinstance(one, str) and one.endswith("\n") for one in (value if isinstance(value, list) else [value])):
        return  # Python's `$` would match before it; that of ECMA 262, which the pattern is, does not
    taken = accepted(route, field, value) and not _refused(route, field, value)
    assert validator(schema).is_valid(value) == taken, value


def _refused(route: Route, field: Field, value: object) -> bool:
    """Whether the operation refuses the counter: the schema of its name lists those that it works on."""
    return field.kind.is_counter and not route.operation.serves(COUNTERS[str(value)])


def test_examples_are_what_their_schemas_say() -> None:
    for route, made in documented():
        for parameter in made.get("parameters", []):
            validator(parameter["schema"]).validate(parameter["example"])
        contents = [made.get("requestBody", {"content": {}})["content"]]
        contents += [resolved(response).get("content", {}) for response in made["responses"].values()]
        for content in contents:
            for media_type, entry in content.items():
                if "example" in entry:
                    validator(entry["schema"]).validate(entry["example"])
                else:
                    assert (route.id, media_type) == ("get_openapi", "application/json")


def test_a_counter_that_a_team_declares_is_in_it() -> None:
    mine = Counter("tested", prefix="SHOW", sort_key="SEATS", attribute="tested", floor=0, start=80)
    made = document(OPERATIONS, declared([*COUNTERS.values(), mine]))["paths"]
    for path in ("/counters/{counter}/{id}", "/counters/{counter}/{id}/holds"):
        [parameter] = [entry for entry in next(iter(made[path].values()))["parameters"] if entry["name"] == "counter"]
        assert "tested" in parameter["schema"]["enum"]
    described = made["/counters/{counter}/{id}/increments"]["post"]["description"]
    assert "| `tested` | any amount | from 0, starts at 80 | now | 24 hours at least |" in described
