"""Tally checks input before it becomes part of a key."""

from __future__ import annotations

import contextlib
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tally import fields
from tally.errors import ForbiddenError, InvalidInputError, TallyError
from tally.pages import AS_SPELT


@pytest.mark.parametrize(
    "bad",
    ["", ".", "..", "..\n", "a#b", "a/b", "a b", "ä", "a" * 129, "a\n", "\x00", "%23", 7, None, True, [], {}, "\ud800"],
)
def test_ids_that_could_forge_a_key_are_refused(bad: object) -> None:
    with pytest.raises(InvalidInputError) as caught:
        fields.identifier(bad, "id")
    assert caught.value.members["field"] == "id"


@settings(max_examples=300)
@given(st.text(max_size=140))
def test_no_text_gets_the_separator_into_a_key(text: str) -> None:
    for check in (fields.identifier, fields.user, partial(fields.page, pages=AS_SPELT), fields.cursor):
        with contextlib.suppress(InvalidInputError):
            assert "#" not in str(check(text, "x"))


def test_anonymous_keys_are_too_long_to_guess_and_callers_own_ones_need_not_be() -> None:
    assert fields.idempotency_key("k" * 22, "key", anonymous=True) == "k" * 22
    assert fields.idempotency_key("k", "key", anonymous=False) == "k"
    assert fields.idempotency_key("3f333df6-90a4-4fda-8dd3-9485d27cee36", "key", anonymous=True)
    for bad in ("k" * 21, "k" * 256):
        with pytest.raises(InvalidInputError):
            fields.idempotency_key(bad, "key", anonymous=True)


@pytest.mark.parametrize(
    "bad", ["with space in the middle", "comma,comma,comma,comma!", "é" * 22, "\x7f" * 22, 22, None]
)
def test_keys_that_a_gateway_could_have_joined_or_mangled_are_refused(bad: object) -> None:
    with pytest.raises(InvalidInputError):
        fields.idempotency_key(bad, "key", anonymous=True)


def test_a_sub_may_hold_anything_and_comes_back_whole() -> None:
    for name in ("auth0|123", "a#b", "ü", "x y", "%7C"):
        quoted = fields.user(name, "caller")
        assert "#" not in quoted
        assert fields.user_name(quoted) == name
    with pytest.raises(InvalidInputError):
        fields.user("ü" * 100, "caller")  # 600 bytes percent-encoded


@pytest.mark.parametrize(
    "bad",
    [
        "", "/a", "//x/y", "ftp://x/y", "javascript:alert(1)", "http://", "http:///a", "http://user:pw@x/",
        "http://x:0/", "http://x:99999/", "http://x y/", "http://x/\n", "http://x\\y/", "http://" + "x" * 1025, 
        "http://x/" + "ä" * 300, "http://" + "ü" * 70 + ".de/", "http://x/\ud800", None, 7, ["http://x/"],
    ],
)  # fmt: skip
def test_what_is_no_page_is_refused(bad: object) -> None:
    with pytest.raises(InvalidInputError):
        fields.page(bad, "url", AS_SPELT)


def test_only_pages_of_listed_hosts_are_counted() -> None:
    hosts = frozenset({"example.com"})
    assert fields.listed_page("https://EXAMPLE.com/a", "url", AS_SPELT, hosts) == "https://example.com/a"
    for other in ("https://example.com.evil.example/", "https://sub.example.com/", "https://evil.example/?example.com"):
        with pytest.raises(ForbiddenError):
            fields.listed_page(other, "url", AS_SPELT, hosts)
    assert fields.listed_page("https://any.example/", "url", AS_SPELT, frozenset({"*"}))
    with pytest.raises(ForbiddenError):
        fields.listed_page("https://any.example/", "url", AS_SPELT, frozenset())


@pytest.mark.parametrize("bad", ["", "!", "a", "====", "TElLRSNVU0VS", "ü", 5, "A" * 2000])
def test_cursors_that_were_not_given_out_are_refused(bad: object) -> None:
    with pytest.raises(InvalidInputError):
        fields.cursor(bad, "cursor")


@given(st.text(min_size=1, max_size=40))
def test_cursors_come_back_as_the_user_that_they_stand_for(name: str) -> None:
    try:
        quoted = fields.user(name, "caller")
    except TallyError:
        return
    assert fields.cursor(fields.to_cursor(quoted), "cursor") == quoted
