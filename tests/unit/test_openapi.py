"""The OpenAPI document is valid and complete, and its schemas take the inputs that `tally/fields.py` takes."""

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
from tally.api.kind import FieldContext, SchemaContext, Source
from tally.api.operation import Field, Route, UserVisibility
from tally.contract.declarations import OPERATIONS
from tally.contract.document import document, document_json
from tally.counter import Counter, declared

ROOT = Path(__file__).parent.parent.parent
DOCUMENT = document(OPERATIONS, COUNTERS)
ROUTES = [route for operation in OPERATIONS for route in operation.routes(COUNTERS)]


def documented_routes() -> Iterator[tuple[Route, dict[str, Any]]]:
    for route in ROUTES:
        yield route, DOCUMENT["paths"][route.path][route.method.lower()]


def resolve(part: dict[str, Any]) -> dict[str, Any]:
    """Returns what the `$ref` of a part refers to; without a `$ref`, the part."""
    target: Any = DOCUMENT
    for name in part.get("$ref", "#/").removeprefix("#/").split("/"):
        target = target[name] if name else part
    return target  # type: ignore[no-any-return]


def validator(schema: dict[str, Any]) -> Draft202012Validator:
    return Draft202012Validator({**schema, "components": DOCUMENT["components"]})


def test_the_document_is_valid_openapi_3_1() -> None:
    OpenAPIV31SpecValidator(DOCUMENT).validate()  # type: ignore[arg-type]
    assert json.loads(document_json(OPERATIONS, COUNTERS)) == DOCUMENT


def test_the_document_says_who_may_list_likers() -> None:
    path = "/counters/likes/{id}/children"
    counters = {**COUNTERS, "likes": replace(COUNTERS["likes"], lists="anyone")}
    for_anyone = document(OPERATIONS, counters)
    assert for_anyone["paths"].keys() - DOCUMENT["paths"].keys() == {path, "/top"}
    assert for_anyone["paths"][path]["get"]["security"] == []
    for_nobody = document(OPERATIONS, counters, likers_visible=UserVisibility.NOBODY)
    assert for_anyone["paths"].keys() - for_nobody["paths"].keys() == {path}
    for_users = document(OPERATIONS, counters, likers_visible=UserVisibility.SIGNED_IN)
    assert for_users["paths"].keys() == for_anyone["paths"].keys()
    listing = for_users["paths"][path]["get"]
    assert (listing["security"], "401" in listing["responses"]) == ([{"token": []}], True)
    assert "A signed-in caller may call it." in listing["description"]


def test_each_documented_operation_says_who_may_call_it() -> None:
    for route, described in documented_routes():
        scopes = [{"token": [route.scope] if route.scope else []}]
        assert described["security"] == (scopes if route.needs_caller else []), route.id
        assert ("401" in described["responses"]) == route.needs_caller
        assert "403" in described["responses"] or route.scope is None


def test_an_operation_documents_exactly_the_inputs_that_it_declares() -> None:
    for route, described in documented_routes():
        parameters = {(parameter["in"], parameter["name"]) for parameter in described.get("parameters", [])}
        not_parameters = (Source.BODY, Source.ADDRESS)
        declared_inputs = {
            (field.source.value, field.http_name) for field in route.fields if field.source not in not_parameters
        }
        counters = route.served_counters(COUNTERS)
        if route.operation.has_counter_in_path and not any(counter.period for counter in counters):
            declared_inputs -= {("query", "period")}  # no counter of the route has periods
        undeclared = {("header", "User-Agent"), ("header", "If-None-Match")}  # every client may send these headers
        assert parameters - undeclared == declared_inputs - undeclared, route.id
        assert (("header", "If-None-Match") in parameters) == route.is_cacheable
        body = described.get("requestBody", {"content": {}})["content"]
        assert bool(body) == any(field.source is Source.BODY or field.kind.body_name for field in route.fields)
        schema = resolve(next(iter(body.values()), {}).get("schema", {}))
        required = {field.http_name for field in route.fields if field.required and field.source is Source.BODY}
        if route.operation.name == "increment" and all(counter.delta is None for counter in counters):
            required.add("amount")  # no counter of the route has a delta in place of the amount
        assert not body or set(schema.get("required", [])) == required, route.id
        takes_beacons = route.operation.name in ("visit", "increment")  # browsers send beacons as text
        assert ("text/plain" in body) == ("text/plain" in media_types(route)) == takes_beacons


def fields_with_exact_schemas() -> list[tuple[str, Route, Field]]:
    """Returns two fields of each kind whose schema says all that is checked: of a signed-in and an anonymous route."""
    fields: dict[tuple[int, bool], tuple[str, Route, Field]] = {}
    with_looser_schemas = {
        kinds.PAGE, kinds.PAGE_OF_LISTED_HOST, kinds.CURSOR, kinds.USER_AGENT, kinds.TIME, kinds.UNTIL, kinds.CHANGES,
        kinds.CHILD_NAME, kinds.CALLER, kinds.ZONE,
    }  # fmt: skip
    for route in ROUTES:
        for field in route.fields:
            if field.kind not in with_looser_schemas:
                name = f"{route.id}-{field.name}"
                fields.setdefault((id(field.kind), route.needs_caller), (name, route, field))
    return list(fields.values())


def passes_check(route: Route, field: Field, value: object) -> bool:
    context = FieldContext(
        anonymous=not route.needs_caller, page_hosts=frozenset({"*"}), counters=COUNTERS, pages=PAGES
    )
    try:
        field.kind.parse(value, field.http_name, context)
    except errors.CallerError:
        return False
    return True


def schema_of(route: Route, field: Field) -> dict[str, Any]:
    return field.kind.schema_for(SchemaContext(route.served_counters(COUNTERS), anonymous=not route.needs_caller))


def values_near(schema: dict[str, Any]) -> st.SearchStrategy[object]:
    """Returns values within a schema, on its bounds and just beyond. In ASCII, because schemas do not count bytes."""
    if schema["type"] == "array":
        least, most = schema["minItems"], schema["maxItems"]
        lists = st.lists(values_near(schema["items"]), min_size=least - 1, max_size=3)
        return lists | st.sampled_from([["a91f"] * length for length in (least - 1, most, most + 1)]) | st.just("a91f")
    if "enum" in schema:
        return st.sampled_from([*schema["enum"], *(f"{value}x" for value in schema["enum"]), "", "visits"])
    if schema["type"] == "boolean":
        return st.booleans() | st.sampled_from([0, 1, "", "True", None])  # not "true": it is valid in a query alone
    if schema["type"] == "integer":
        bounds = (schema["minimum"], schema["maximum"])
        return st.integers() | st.sampled_from([bound + step for bound in bounds for step in (-1, 0, 1)])
    longest = schema.get("maxLength", 40)
    lengths = [schema.get("minLength", 1) - 1, schema.get("minLength", 1), longest, longest + 1]
    texts = st.text(st.characters(max_codepoint=126, categories=["L", "N", "P", "S", "Zs"]), max_size=40)
    texts |= st.sampled_from(["a", "Z9", ","]).flatmap(
        lambda character: st.sampled_from([character * length for length in lengths])
    )
    return texts | st.from_regex(re.compile(schema["pattern"])) if "pattern" in schema else texts


@pytest.mark.parametrize(
    ("name", "route", "field"), fields_with_exact_schemas(), ids=[name for name, *_ in fields_with_exact_schemas()]
)
@settings(max_examples=30)
@given(data=st.data())
def test_a_schema_takes_the_values_that_the_check_takes(name: str, route: Route, field: Field, data: Any) -> None:
    schema = schema_of(route, field)
    value = data.draw(values_near(schema))
    if any(isinstance(text, str) and text.endswith("\n") for text in (value if isinstance(value, list) else [value])):
        return  # patterns are for ECMA 262. There `$` matches only at the end; in Python also before a last line break
    is_taken = passes_check(route, field, value) and not _is_refused_by_operation(route, field, value)
    assert validator(schema).is_valid(value) == is_taken, value


def _is_refused_by_operation(route: Route, field: Field, value: object) -> bool:
    """Whether the operation refuses the counter. The schema of a counter's name lists the counters that it takes."""
    return field.kind.is_counter and not route.operation.serves(COUNTERS[str(value)])


def test_each_example_is_valid_by_its_schema() -> None:
    for route, described in documented_routes():
        for parameter in described.get("parameters", []):
            validator(parameter["schema"]).validate(parameter["example"])
        contents = [described.get("requestBody", {"content": {}})["content"]]
        contents += [resolve(response).get("content", {}) for response in described["responses"].values()]
        for content in contents:
            for media_type, entry in content.items():
                if "example" in entry:
                    validator(entry["schema"]).validate(entry["example"])
                else:
                    assert (route.id, media_type) == ("get_openapi", "application/json")


def test_the_document_has_a_counter_that_a_team_declares() -> None:
    team_counter = Counter("tested", prefix="SHOW", sort_key="SEATS", attribute="tested", floor=0, start=80)
    paths = document(OPERATIONS, declared([*COUNTERS.values(), team_counter]))["paths"]
    for path in ("/counters/{counter}/{id}", "/counters/{counter}/{id}/holds"):
        [parameter] = [entry for entry in next(iter(paths[path].values()))["parameters"] if entry["name"] == "counter"]
        assert "tested" in parameter["schema"]["enum"]
    description = paths["/counters/{counter}/{id}/increments"]["post"]["description"]
    assert "| `tested` | any amount | from 0, starts at 80 | now | 24 hours at least |" in description
