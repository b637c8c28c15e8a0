"""Each error of botocore becomes an error of Tally, and each error of Tally becomes an HTTP answer."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator

import botocore.exceptions
import botocore.session
import pytest
from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError
from botocore.exceptions import ConnectionError as NoConnectionError

import tally
from tally import errors
from tally.errors import (
    RetryableError,
    StoreBusyError,
    StoreUnreachableError,
    TallyError,
    from_botocore,
    problem_document,
)
from tally.records import RecordChangedError, RecordExistsError
from tests import faults
from tests.invariants.world import World, retry_until_final

OPERATIONS = ("TransactWriteItems", "UpdateItem", "Query", "BatchGetItem", "GetItem")
# Errors that every AWS service may answer (docs.aws.amazon.com, "Common Errors"), and answers without a known code.
COMMON_ERRORS = (
    "AccessDeniedException", "ExpiredTokenException", "IncompleteSignature", "InternalFailure", "InvalidAction",
    "InvalidClientTokenId", "MalformedQueryString", "MissingAuthenticationToken", "NotAuthorized", "OptInRequired",
    "RequestExpired", "RequestTimeout", "ServiceUnavailable", "ThrottlingException", "UnrecognizedClientException",
    "ValidationException", "ValidationError", "SerializationException", "400", "", "SomethingNew",
)  # fmt: skip
CONTROL_FLOW = (errors.AlreadyCountedError, errors.ChangeRefusedError, errors.HotTallyError)  # Tally catches these
ABSTRACT = (errors.CallerError, TallyError)  # Tally raises only their subclasses
RECORDS = (RecordExistsError, RecordChangedError)  # these errors are made with the stored item


for _module in pkgutil.walk_packages(tally.__path__, "tally."):
    importlib.import_module(_module.name)  # each module defines its errors, and `errors_of_tally` lists them


def service_errors() -> list[str]:
    """Returns every error that the model of DynamoDB lists for the operations that Tally uses."""
    model = botocore.session.get_session().get_service_model("dynamodb")
    return sorted({shape.name for name in OPERATIONS for shape in model.operation_model(name).error_shapes})


EVERY_CODE = sorted({*service_errors(), *COMMON_ERRORS, *errors.BUSY_CODES, *errors.UNREACHABLE_CODES} - {""})


def botocore_errors() -> list[type[BotoCoreError]]:
    members = vars(botocore.exceptions).values()
    return sorted({cls for cls in members if inspect.isclass(cls) and issubclass(cls, BotoCoreError)}, key=str)


def errors_of_tally(root: type[TallyError] = TallyError) -> Iterator[type[TallyError]]:
    """Yields an error class and every subclass."""
    yield root
    for cls in root.__subclasses__():
        yield from errors_of_tally(cls)


def client_error(code: str, status: int = 400) -> ClientError:
    response = {"Error": {"Code": code, "Message": "no"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(response, "TransactWriteItems")  # type: ignore[arg-type]


def test_every_store_error_is_retryable_contention_is_busy_and_a_missing_answer_is_unreachable() -> None:
    uninitialized = {cls: cls.__new__(cls) for cls in botocore_errors()}  # each __init__ needs other arguments
    for error in (*map(client_error, [*service_errors(), *COMMON_ERRORS]), *uninitialized.values()):
        translated = from_botocore(error)
        assert isinstance(translated, RetryableError), error
        assert translated.status == 503
    for code in errors.BUSY_CODES:
        assert isinstance(from_botocore(client_error(code)), StoreBusyError), code
    no_answer = [error for cls, error in uninitialized.items() if issubclass(cls, (HTTPClientError, NoConnectionError))]
    failures = [client_error("NeverHeardOf", status) for status in (500, 502, 503, 504)]
    assert len(no_answer) > 5
    for unreachable in (*no_answer, *failures):
        assert isinstance(from_botocore(unreachable), StoreUnreachableError), unreachable


@pytest.mark.parametrize("committed", [False, True], ids=["before", "after"])
def test_a_change_that_the_store_answers_with_any_error_code_counts_once(world: World, committed: bool) -> None:
    """The real SDK reads the answer, so Tally gets the error that the SDK makes of the answer."""
    world.proxy.strip_tokens = True
    for number, code in enumerate(EVERY_CODE, 1):
        fault = faults.error_after_write(code) if committed else faults.error_answer(code)
        world.proxy.plan = faults.script({"TransactWriteItems": [fault] * 3})  # the SDK sends a request up to 3 times
        retry_until_final(lambda key=f"key-{code}": world.play(key))  # type: ignore[misc]
        assert world.tally_after_rollup() == number, code


def test_every_error_has_a_documented_status_and_a_slug_and_title_of_its_own() -> None:
    caller_errors, retryable = [*errors_of_tally(errors.CallerError)][1:], [*errors_of_tally(RetryableError)]
    assert {cls.status for cls in caller_errors} == {400, 401, 403, 404, 409, 412, 413, 415, 422, 428}
    assert {cls.status for cls in retryable} == {503}
    internal = {*errors_of_tally()} - {*caller_errors, *retryable, *CONTROL_FLOW, errors.CallerError, TallyError}
    assert {cls.status for cls in internal} == {500}
    distinct = [TallyError, *caller_errors, *retryable, *(cls for cls in internal if cls.slug != TallyError.slug)]
    for attribute in ("slug", "title"):
        values = [getattr(cls, attribute) for cls in distinct]
        assert len(set(values)) == len(values)
        assert all(values)


def test_the_tree_in_the_docstring_has_each_error_with_its_status() -> None:
    tree = dict(re.findall(r"^[│├└─ ]*(\w+Error)\b(.*)$", str(errors.__doc__), re.MULTILINE))
    assert tree.keys() == {cls.__name__ for cls in errors_of_tally()}
    for cls in errors_of_tally():
        assert str(cls.status) in tree[cls.__name__] or cls in (*CONTROL_FLOW, *ABSTRACT, RetryableError)


def test_the_problem_document_of_every_error_is_complete() -> None:
    for cls in errors_of_tally():
        if cls not in CONTROL_FLOW:
            error = cls("why", {}) if cls in RECORDS else cls("why", field="id")  # type: ignore[call-arg,arg-type]
            document = problem_document(error, request_id="r-1")
            assert document.keys() >= {"type", "title", "status", "detail"}
            assert ("field" in document) is (cls not in RECORDS)
            assert document["type"] == errors.PROBLEM_TYPE_PREFIX + cls.slug
            assert ("request_id" in document) is (cls.status >= 500)
            assert ("why" in document["detail"]) is (cls.status != 500)  # callers do not see the message of a bug
            assert document["detail"].endswith(errors.SEND_AGAIN) is issubclass(cls, RetryableError)
    # The errors of `tally/client` have the detail of an answer, which already ends with SEND_AGAIN.
    passed_on = errors.StoreBusyError(problem_document(errors.StoreBusyError("why"))["detail"])
    assert problem_document(passed_on)["detail"] == f"why {errors.SEND_AGAIN}"
