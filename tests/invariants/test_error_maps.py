"""Both maps of errors are total: from botocore to ours, and from ours to HTTP."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator

import botocore.exceptions
import botocore.session
import pytest
from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError

import tally
from dev import faults
from tally import errors
from tally.drift.reconcile import NotProvenError, OutOfBoundsError, RestlessError
from tally.drift.restored import NotAtRestError
from tally.dynamo.transactions import MovedError, RejectedError
from tally.errors import RetryableError, StoreBusyError, StoreUnreachableError, TallyError, from_botocore, problem
from tally.records import RecordChangedError, RecordExistsError
from tally.records.attribute_values import RecordMismatchError
from tally.records.expression_syntax import ExpressionError
from tally.streams.dead_letters import ObjectGoneError
from tally.streams.record import UnreadableError
from tests.invariants.world import World, persist

OPERATIONS = ("TransactWriteItems", "UpdateItem", "Query", "BatchGetItem", "GetItem")
COMMON_ERRORS = (  # of every AWS service: docs.aws.amazon.com, "Common Errors"
    "AccessDeniedException", "ExpiredTokenException", "IncompleteSignature", "InternalFailure", "InvalidAction",
    "InvalidClientTokenId", "MalformedQueryString", "MissingAuthenticationToken", "NotAuthorized", "OptInRequired",
    "RequestExpired", "RequestTimeout", "ServiceUnavailable", "ThrottlingException", "UnrecognizedClientException",
    "ValidationException", "ValidationError", "SerializationException", "400", "", "SomethingNew",
)  # fmt: skip
STATUSES = {400, 401, 403, 404, 409, 412, 413, 415, 422, 428, 429, 503}
CONTROL_FLOW = (errors.ReceiptFoundError, errors.ChangeRefusedError, errors.TallyHotError)
ABSTRACT = (errors.CallerError, TallyError)
OUR_FAULT = (errors.ConfigurationError, ExpressionError, RecordMismatchError)  # 500: no request can bring them about
OF_REPAIRS = (NotProvenError, RestlessError, OutOfBoundsError, NotAtRestError)
BACKSTAGE = (UnreadableError, ObjectGoneError, RejectedError, MovedError, *OF_REPAIRS)
RECORDS = (RecordExistsError, RecordChangedError)  # made with the stored item


for _module in pkgutil.walk_packages(tally.__path__, "tally."):
    importlib.import_module(_module.name)  # whatever it raises is in the tree below


def service_errors() -> list[str]:
    """Every error that the model of DynamoDB lists for the operations that we use."""
    model = botocore.session.get_session().get_service_model("dynamodb")
    return sorted({shape.name for name in OPERATIONS for shape in model.operation_model(name).error_shapes})


EVERY_CODE = sorted({*service_errors(), *COMMON_ERRORS, *errors.BUSY_CODES, *errors.UNREACHABLE_CODES} - {""})


def botocore_errors() -> list[type[BotoCoreError]]:
    found = vars(botocore.exceptions).values()
    return sorted({cls for cls in found if inspect.isclass(cls) and issubclass(cls, BotoCoreError)}, key=str)


def ours(root: type[TallyError] = TallyError) -> Iterator[type[TallyError]]:
    yield root
    for cls in root.__subclasses__():
        yield from ours(cls)


def client_error(code: str, status: int = 400) -> ClientError:
    response = {"Error": {"Code": code, "Message": "no"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(response, "TransactWriteItems")  # type: ignore[arg-type]


def made(cls: type[BotoCoreError]) -> BotoCoreError:
    return cls.__new__(cls)  # not made: each wants arguments of its own


def test_every_error_of_the_service_and_of_botocore_becomes_a_retryable_one_of_ours() -> None:
    for error in (*map(client_error, [*service_errors(), *COMMON_ERRORS]), *map(made, botocore_errors())):
        ours_ = from_botocore(error)
        assert isinstance(ours_, RetryableError), error
        assert ours_.status == 503


def test_conflicts_and_throttling_are_busy_and_silence_and_failures_of_the_store_are_unreachable() -> None:
    for code in errors.BUSY_CODES:
        assert isinstance(from_botocore(client_error(code)), StoreBusyError), code
    silence = (
        HTTPClientError,
        botocore.exceptions.ConnectTimeoutError,
        botocore.exceptions.ReadTimeoutError,
        botocore.exceptions.EndpointConnectionError,
        botocore.exceptions.ConnectionClosedError,
        botocore.exceptions.SSLError,
    )
    failures = (client_error("NeverHeardOf", status) for status in (500, 502, 503, 504))
    for error in (*map(made, silence), *failures):
        assert isinstance(from_botocore(error), StoreUnreachableError), error


@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
def test_every_answer_of_the_store_to_a_change_is_an_error_of_ours_and_counts_once(world: World, done: bool) -> None:
    """Through the SDK: what it makes of the answer is what the core gets."""
    world.proxy.strip_tokens = True
    for number, code in enumerate(EVERY_CODE, 1):
        fault = faults.answer_after(code) if done else faults.answer(code)
        world.proxy.plan = faults.script({"TransactWriteItems": [fault] * 3})
        persist(lambda key=f"key-{code}": world.play(key))  # type: ignore[misc]
        assert world.rolled_up() == number, code


@pytest.mark.parametrize("read", [World.read_plays, World.read_post], ids=["plays", "post"])
def test_every_answer_of_the_store_to_a_read_is_an_error_of_ours(world: World, read: Callable[[World], object]) -> None:
    for code in EVERY_CODE:
        world.proxy.plan = faults.always(faults.answer(code))
        with pytest.raises(RetryableError):
            read(world)


def test_every_error_of_ours_has_a_status_of_the_contract() -> None:
    answered = [cls for cls in ours() if cls not in (*CONTROL_FLOW, *ABSTRACT, *OUR_FAULT, *BACKSTAGE)]
    assert {cls.status for cls in answered} <= STATUSES
    assert len(answered) >= 12
    assert {cls.status for cls in ours(RetryableError)} == {503}
    assert all(400 <= cls.status < 500 for cls in ours(errors.CallerError) if cls not in ABSTRACT)
    assert {cls.status for cls in (*OUR_FAULT, *BACKSTAGE)} == {500}


def test_every_error_of_ours_has_a_slug_and_a_title_of_its_own() -> None:
    told_apart = [cls for cls in ours() if cls not in (*CONTROL_FLOW, *BACKSTAGE, errors.CallerError)]
    for attribute in ("slug", "title"):
        values = [getattr(cls, attribute) for cls in told_apart]
        assert len(set(values)) == len(values)
        assert all(values)


def test_tree_in_the_docstring_has_each_error_with_its_status_and_shows_whose_it_is() -> None:
    """A line stands below its base, one level (four characters) further in, or below the remark in brackets that says
    what is done with it; an error of another module names it."""
    assert errors.__doc__
    named: dict[str, tuple[str, str]] = {}
    above: list[str] = []
    for line in errors.__doc__.splitlines():
        mark = re.match(r"(?:[│ ]   )*(?:[├└]── )?", line)
        text = line[mark.end() :] if mark else ""
        if mark and (mark.end() or line == "TallyError"):
            del above[mark.end() // 4 :]
            if text.endswith("Error") or "Error " in text:
                named[text.split()[0]] = (above[-1] if above else "", line)
            above.append(text.split("  ")[0])
    assert named.keys() == {cls.__name__ for cls in ours()}
    for cls in ours():
        parent, line = named[cls.__name__]
        assert str(cls.status) in line or cls in (*CONTROL_FLOW, *ABSTRACT, RetryableError)
        if parent.startswith("("):
            assert parent.startswith("(control flow") is (cls in CONTROL_FLOW)
            assert parent.startswith("(of stream consumers") is (cls in BACKSTAGE)
        elif parent:
            assert [base.__name__ for base in cls.__bases__] == [parent]
        assert (
            cls.__module__ == "tally.errors"
            or f"({cls.__module__.removeprefix('tally.').replace('.', '/')}.py)" in line
        )


def test_problem_of_every_error_is_complete() -> None:
    for cls in ours():
        if cls not in CONTROL_FLOW:
            error = cls("why", {}) if cls in RECORDS else cls("why", field="id")  # type: ignore[call-arg,arg-type]
            document = problem(error, request_id="r-1")
            assert document.keys() >= {"type", "title", "status", "detail"}
            assert ("field" in document) is (cls not in RECORDS)
            assert document["type"] == errors.PROBLEM_TYPE_PREFIX + cls.slug
            assert ("request_id" in document) is (cls.status >= 500)
            assert ("why" in document["detail"]) is (cls.status != 500)  # what a bug says is not for callers
