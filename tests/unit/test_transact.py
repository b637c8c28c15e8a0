"""`commit` refuses invalid input before it sends anything. A function refuses an invalid GRANT when it starts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from decimal import Decimal
from typing import Any

import pytest

import counters
from tally.dynamo.client import Store, dynamodb_client
from tally.dynamo.keys import FORMAT
from tally.errors import ConfigurationError, InvalidInputError, PayloadTooLargeError
from tally.settings import Settings
from tally.transact import Transactions

ORDER = [("stock", "mug", -1), ("plays", "mug"), ("usage", "ann", 1)]  # counter, id, and amount
KEY_A = {"PK": {"S": "a"}}
CIRCLE: dict[str, Any] = {"M": {}}
CIRCLE["M"]["x"] = CIRCLE
GRANT = {  # what `grant_transact` writes into the variable of a function
    "format": FORMAT,
    "version": "0.1.0",
    "counters": [{"name": "usage", "prefix": "USER", "sort_key": "USAGE", "attribute": "usage"}],
    "settings": {"TALLY_COUNTS_TABLE": "c", "TALLY_RECEIPTS_TABLE": "r", "TALLY_LEDGER_TABLE": "l"},
}


@pytest.fixture(scope="module")
def transactions() -> Iterator[Transactions]:
    """Transactions whose store refuses each connection."""
    settings = Settings.from_environment(GRANT["settings"])  # type: ignore[arg-type]
    with closing(dynamodb_client(endpoint_url="http://localhost:9")) as client:
        yield Transactions(Store(client, settings), {name: counters.COUNTERS[name] for name, *_ in ORDER}, "shop")


@pytest.mark.parametrize(
    ("arguments", "field", "why"),
    [
        ({"key": ""}, "key", "must not be empty"),
        ({"key": "a b"}, "key", "visible ASCII"),
        ({"key": 7}, "key", "must be a string"),
        ({"changes": []}, "changes", "not empty"),
        ({"changes": {"stock": -1}}, "changes", "list of"),
        ({"changes": ("stock", "mug", -1)}, r"changes[0]", r"must be \(counter, id\)"),
        ({"changes": [("stock", "mug", -1, 0)]}, "changes[0]", r"must be \(counter, id\)"),
        ({"changes": [("likes", "x")]}, "changes[0]", "may change stock, plays, usage, and not 'likes'"),
        ({"changes": [(["stock"], "x")]}, "changes[0]", "may change"),
        ({"changes": [("stock", "a#b", 1)]}, "changes[0].id", "1 to 256"),
        ({"changes": [("stock", "mug")]}, "changes[0].amount", "is missing"),
        *(({"changes": [("stock", "mug", amount)]}, "changes[0].amount", "whole number")
          for amount in ("1", 0.5, True, None, float("nan"), Decimal("NaN"), Decimal("1e999999999"), Decimal("0.5"))),
        ({"answer": {1, 2}}, "answer", "cannot be written as JSON"),
        ({"answer": Decimal(1)}, "answer", "cannot be written as JSON"),
        ({"payload": float("nan")}, "payload", "cannot be written as JSON"),
        ({"payload": CIRCLE}, "payload", "cannot be written as JSON"),
        ({"context": {"remaining": 3}}, "context", "what Lambda gives"),
        ({"writes": {"Put": {}}}, "writes", "list of TransactItems"),
        ({"writes": "Put"}, "writes", "list of TransactItems"),
        ({"writes": ["Put"]}, "writes[0]", "Invalid type"),
        ({"writes": [{}]}, "writes[0]", "one of Put, Update, Delete and ConditionCheck"),
        ({"writes": [{"Put": {"TableName": "t", "Item": KEY_A}, "Delete": {"TableName": "t", "Key": KEY_A}}]},
         "writes[0]", "one of Put"),
        ({"writes": [{"Get": {"TableName": "t", "Key": KEY_A}}]}, "writes[0]", 'Unknown parameter in input: "Get"'),
        ({"writes": [{"Put": {"TableName": "t", "Item": KEY_A}, "ClientRequestToken": "x"}]}, "writes[0]", "Unknown"),
        ({"writes": [{"Put": {"Item": KEY_A}}]}, "writes[0]", 'Missing required parameter in Put: "TableName"'),
        ({"writes": [{"Put": {"TableName": "t", "Item": {"PK": "o-1"}}}]}, "writes[0]", "form: {\"S\": \"mug\"}"),
        ({"writes": [{"Put": {"TableName": "t", "Item": {"n": {"N": 5}}}}]}, "writes[0]", "Use boto3.dynamodb.types"),
        ({"writes": [{"Put": {"TableName": "t", "Item": {"n": {"SS": {"a"}}}}}]}, "writes[0]", "valid types"),
        ({"writes": [{"Put": {"TableName": "t", "Item": {"n": {"S": "\ud800"}}}}]}, "writes[0]", "surrogates"),
        ({"writes": [{"Put": {"TableName": "t", "Item": CIRCLE["M"]}}]}, "writes[0]", "cannot be sent"),
    ],
)  # fmt: skip
def test_an_invalid_argument_is_refused_with_the_name_of_the_wrong_part(
    transactions: Transactions, arguments: dict[str, Any], field: str, why: str
) -> None:
    all_arguments: dict[str, Any] = {"key": "k", "changes": ORDER, **arguments}
    with pytest.raises(InvalidInputError, match=why) as refused:
        transactions.commit(**all_arguments)
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"answer": "x" * 2047}, "answer has 2049 bytes as JSON: at most 2048 fit"),
        ({"changes": [("usage", "ann", 1)] * 1001}, "at most 1000 changes"),
        ({"changes": [("usage", f"u{number}", 1) for number in range(91)]}, "more than 90 tallies"),
        ({"writes": [{"Delete": {"TableName": "t", "Key": KEY_A}}] * 97},
         "A receipt, 3 tallies and 97 writes are 101 items: a transaction has at most 100"),
        ({"writes": [{"Put": {"TableName": "t", "Item": {"x": {"B": bytes(400_000)}}}}] * 50}, "than the 4 MB"),
    ],
)  # fmt: skip
def test_an_argument_that_is_too_large_is_refused_with_its_size_and_the_limit(
    transactions: Transactions, arguments: dict[str, Any], why: str
) -> None:
    with pytest.raises(PayloadTooLargeError, match=why):
        transactions.commit(**{"key": "k", "changes": ORDER, **arguments})


@pytest.mark.parametrize("table", ["c", "r", "arn:aws:dynamodb:eu-west-1:1:table/l"])
def test_a_team_write_to_a_table_of_tally_is_refused(transactions: Transactions, table: str) -> None:
    writes = [{"Delete": {"TableName": name, "Key": KEY_A}} for name in ("shop", table)]
    with pytest.raises(InvalidInputError, match=r"writes\[1\] is of a table of Tally's"):
        transactions.commit("k", ORDER, writes)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, r"GRANTED is not set: tally.grant_transact\(function, …\) sets it"),
        ("{", "GRANTED is not what tally.grant_transact"),
        ("[]", "GRANTED is not what"),
        (json.dumps({**GRANT, "settings": 7}), "GRANTED is not what"),
        (json.dumps({**GRANT, "format": FORMAT + 1, "version": "2.0.0"}),
         f"Tally stores format {FORMAT + 1}, and this package {FORMAT}: install tallystick 2.0.0 beside this function"),
        (json.dumps({**GRANT, "counters": [{**GRANT["counters"][0], "colour": "red"}]}),  # type: ignore[index]
         "unexpected keyword argument 'colour': install tallystick 0.1.0"),
        (json.dumps({**GRANT, "counters": [{**GRANT["counters"][0], "visible": "later"}]}),  # type: ignore[index]
         "visible is 'later', but must be one of: now, soon: install"),
        (json.dumps({**GRANT, "counters": ["usage"]}), "install tallystick 0.1.0"),
        (json.dumps({**GRANT, "settings": {}}), "TALLY_COUNTS_TABLE is not set"),
    ],
)  # fmt: skip
def test_a_function_with_a_missing_invalid_or_newer_grant_does_not_start(text: str | None, why: str) -> None:
    environment = {} if text is None else {"GRANTED": text}
    with pytest.raises(ConfigurationError, match=why):
        Transactions.from_environment(environment, caller="shop", variable="GRANTED")


def test_the_name_of_the_caller_must_not_be_empty() -> None:
    with pytest.raises(InvalidInputError, match="caller must not be empty"):
        Transactions.from_environment({"TALLY_TRANSACT": json.dumps(GRANT)}, caller="")
