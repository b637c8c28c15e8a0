"""`/dev/mappings`: one event source mapping disabled and enabled while everything runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.e2e.dev import Dev
from tests.patience import wait_for

PAGE = "https://example.com/a"
NAMES = ["drift/counts", "drift/receipts", "rollup/counts", "rollup/receipts"]
LOOK_FOR_S = 3.0  # the rollup of an enabled mapping takes about a second


def mappings(dev: Dev) -> dict[str, bool]:
    answer = dev.call("GET", "/dev/mappings")
    assert answer.status == 200
    return {f"{one['consumer']}/{one['table']}": one["enabled"] for one in answer.body["mappings"]}


def switch(dev: Dev, enabled: bool) -> None:
    for _ in range(2):
        answer = dev.call("PATCH", "/dev/mappings/rollup/receipts", {"enabled": enabled})
        assert (answer.status, answer.body) == (
            200, {"consumer": "rollup", "table": "receipts", "enabled": enabled}
        )  # fmt: skip


def visit(dev: Dev, number: int) -> None:
    answer = dev.call("POST", "/visits", {"url": PAGE, "key": f"visit-{number:020}"}, user_agent="Mozilla/5.0 Firefox")
    assert answer.status == 202


def visits(dev: Dev) -> int:
    return int(dev.call("GET", f"/visits?url={PAGE}").body["visits"])


def test_a_disabled_mapping_delivers_nothing_until_it_is_enabled(start: Callable[..., Dev]) -> None:
    dev = start().wait_until_ready()
    assert mappings(dev) == dict.fromkeys(NAMES, True)
    visit(dev, 1)
    wait_for(lambda: visits(dev) == 1)
    switch(dev, False)
    assert mappings(dev) == {**dict.fromkeys(NAMES, True), "rollup/receipts": False}
    visit(dev, 2)
    time.sleep(LOOK_FOR_S)
    assert visits(dev) == 1
    switch(dev, True)
    wait_for(lambda: visits(dev) == 2)
    assert mappings(dev) == dict.fromkeys(NAMES, True)
    said = [line for line in dev.text.splitlines() if "the mapping" in line]
    assert said == [
        "tally: the mapping rollup/receipts is disabled, until PATCH or a restart enables it",
        "tally: the mapping rollup/receipts is enabled",
    ]


@pytest.mark.parametrize(
    ("path", "raw", "status", "says"),
    [
        ("sweep/counts", b'{"enabled": false}', 404, "there is no mapping sweep/counts: there are drift/counts, "),
        ("rollup/ledger", b'{"enabled": false}', 404, "there is no mapping rollup/ledger"),
        ("%22%0A/counts", b'{"enabled": false}', 404, 'there is no mapping "\n/counts'),
        ("rollup", b'{"enabled": false}', 404, "Not Found"),
        ("rollup/counts", b"", 400, 'the body must be {"enabled": true} or {"enabled": false}'),
        ("rollup/counts", b"\xff", 400, "the body must be"),
        ("rollup/counts", b"[" * 100_000, 400, "the body must be"),
        ("rollup/counts", b"[]", 400, "the body must be"),
        ("rollup/counts", b"{}", 400, "the body must be"),
        ("rollup/counts", b'{"enabled": 0}', 400, "the body must be"),
        ("rollup/counts", b'{"enabled": "false"}', 400, "the body must be"),
        ("rollup/counts", b'{"enabled": false, "for_s": 120}', 400, "the body must be"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(dev: Dev, path: str, raw: bytes, status: int, says: str) -> None:
    answer: Any = dev.call("PATCH", f"/dev/mappings/{path}", raw=raw)
    assert answer.status == status
    assert answer.body["message"].startswith(says)
    assert mappings(dev) == dict.fromkeys(NAMES, True)
