"""Input is checked before it becomes part of a key."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tally import fields
from tally.errors import ForbiddenError, InvalidInputError, TallyError
from tally.pages import DROP_NOTHING

check_anonymous_key = partial(fields.idempotency_key, anonymous=True)
check_page = partial(fields.page, pages=DROP_NOTHING)
REFUSED: list[tuple[Callable[[object, str], object], list[object]]] = [
    (fields.identifier, ["", ".", "..", "..\n", "a#b", "a/b", "ä", "a" * 257, "\x00", "%23", 7, None, "\ud800"]),
    (check_anonymous_key,
     ["k" * 21, "k" * 256, "with space in the middle", "comma,comma,comma,comma!", "é" * 22, 22, None]),
    (
        check_page,
        [
            "", "/a", "//x/y", "ftp://x/y", "javascript:alert(1)", "http://", "http:///a", "http://user:pw@x/",
            "http://x:0/", "http://x:99999/", "http://x y/", "http://x/\n", "http://x\\y/", "http://" + "x" * 1025,
            "http://x/" + "ä" * 300, "http://" + "ü" * 70 + ".de/", "http://x/\ud800", None, 7, ["http://x/"],
        ],
    ),
    (fields.cursor, ["", "!", "a", "====", "TElLRSNVU0VS", "ü", 5, "A" * 2000]),  # the fifth is `LIKE#USER` in base64
]  # fmt: skip


@pytest.mark.parametrize(("check", "value"), [(check, value) for check, values in REFUSED for value in values])
def test_input_that_could_forge_a_key_and_an_invalid_page_are_refused(
    check: Callable[[object, str], object], value: object
) -> None:
    with pytest.raises(InvalidInputError) as caught:
        check(value, "id")
    assert caught.value.members["field"] == "id"


@settings(max_examples=300)
@given(st.text(max_size=140))
def test_no_input_puts_the_separator_into_a_key(text: str) -> None:
    for check in (fields.identifier, fields.user, check_page, fields.cursor):
        with contextlib.suppress(InvalidInputError):
            assert "#" not in str(check(text, "x"))


def test_the_idempotency_key_of_an_anonymous_caller_must_be_long_and_other_keys_may_be_short() -> None:
    """22 characters of base64 carry 128 bits, so nobody can guess the key of another browser."""
    assert check_anonymous_key("k" * 22, "key") == "k" * 22
    assert fields.idempotency_key("k", "key", anonymous=False) == "k"


def test_the_sub_of_a_user_may_have_any_characters_and_is_decoded_exactly() -> None:
    for name in ("auth0|123", "a#b", "ü", "x y", "%7C"):
        quoted = fields.user(name, "caller")
        assert "#" not in quoted
        assert fields.decoded_user(quoted) == name
    with pytest.raises(InvalidInputError):
        fields.user("ü" * 100, "caller")  # 600 bytes percent-encoded


def test_only_a_page_of_a_listed_host_is_accepted() -> None:
    hosts = frozenset({"example.com"})
    assert fields.page_of_listed_host("https://EXAMPLE.com/a", "url", DROP_NOTHING, hosts) == "https://example.com/a"
    for page in ("https://example.com.evil.example/", "https://sub.example.com/", "https://evil.example/?example.com"):
        with pytest.raises(ForbiddenError):
            fields.page_of_listed_host(page, "url", DROP_NOTHING, hosts)
    assert fields.page_of_listed_host("https://any.example/", "url", DROP_NOTHING, frozenset({"*"}))
    with pytest.raises(ForbiddenError):
        fields.page_of_listed_host("https://any.example/", "url", DROP_NOTHING, frozenset())


@given(st.text(min_size=1, max_size=40))
def test_a_cursor_is_decoded_to_the_user_that_it_encodes(name: str) -> None:
    try:
        quoted = fields.user(name, "caller")
    except TallyError:
        return
    assert fields.cursor(fields.encode_cursor(quoted), "cursor") == quoted
