"""Tally checks input before it becomes part of a key."""

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

ANONYMOUS_KEY = partial(fields.idempotency_key, anonymous=True)
PAGE = partial(fields.page, pages=DROP_NOTHING)
REFUSED: list[tuple[Callable[[object, str], object], list[object]]] = [
    (fields.identifier, ["", ".", "..", "..\n", "a#b", "a/b", "ä", "a" * 257, "\x00", "%23", 7, None, "\ud800"]),
    (ANONYMOUS_KEY, ["k" * 21, "k" * 256, "with space in the middle", "comma,comma,comma,comma!", "é" * 22, 22, None]),
    (
        PAGE,
        [
            "", "/a", "//x/y", "ftp://x/y", "javascript:alert(1)", "http://", "http:///a", "http://user:pw@x/",
            "http://x:0/", "http://x:99999/", "http://x y/", "http://x/\n", "http://x\\y/", "http://" + "x" * 1025,
            "http://x/" + "ä" * 300, "http://" + "ü" * 70 + ".de/", "http://x/\ud800", None, 7, ["http://x/"],
        ],
    ),
    (fields.cursor, ["", "!", "a", "====", "TElLRSNVU0VS", "ü", 5, "A" * 2000]),
]  # fmt: skip


@pytest.mark.parametrize(("check", "bad"), [(check, bad) for check, values in REFUSED for bad in values])
def test_what_could_forge_or_mangle_a_key_or_is_no_page_is_refused(
    check: Callable[[object, str], object], bad: object
) -> None:
    with pytest.raises(InvalidInputError) as caught:
        check(bad, "id")
    assert caught.value.members["field"] == "id"


@settings(max_examples=300)
@given(st.text(max_size=140))
def test_no_text_gets_the_separator_into_a_key(text: str) -> None:
    for check in (fields.identifier, fields.user, PAGE, fields.cursor):
        with contextlib.suppress(InvalidInputError):
            assert "#" not in str(check(text, "x"))


def test_anonymous_keys_are_too_long_to_guess_and_callers_own_ones_need_not_be() -> None:
    assert ANONYMOUS_KEY("k" * 22, "key") == "k" * 22
    assert fields.idempotency_key("k", "key", anonymous=False) == "k"


def test_a_sub_may_hold_anything_and_comes_back_whole() -> None:
    for name in ("auth0|123", "a#b", "ü", "x y", "%7C"):
        quoted = fields.user(name, "caller")
        assert "#" not in quoted
        assert fields.decoded_user(quoted) == name
    with pytest.raises(InvalidInputError):
        fields.user("ü" * 100, "caller")  # 600 bytes percent-encoded


def test_only_pages_of_listed_hosts_are_counted() -> None:
    hosts = frozenset({"example.com"})
    assert fields.page_of_listed_host("https://EXAMPLE.com/a", "url", DROP_NOTHING, hosts) == "https://example.com/a"
    for other in ("https://example.com.evil.example/", "https://sub.example.com/", "https://evil.example/?example.com"):
        with pytest.raises(ForbiddenError):
            fields.page_of_listed_host(other, "url", DROP_NOTHING, hosts)
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
