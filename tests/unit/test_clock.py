"""Each successful answer of DynamoDB corrects the clock of a process, by no more than the answer proves."""

from __future__ import annotations

import inspect
import time
from email.utils import formatdate

import pytest
from botocore.exceptions import ClientError

from tally.dev.base.engine import Engine
from tally.dynamo import client, clock
from tally.dynamo.clock import CLOCK, Clock

TRUE_S = 1_800_000_000.0
REAL_DATE = inspect.unwrap(client._date)  # tests/conftest.py replaces `_date`


@pytest.mark.parametrize(
    ("off_s", "took_s", "corrected_s"),
    [
        (0, 0.01, 0),
        (0, 3600, 0),  # the process was frozen before it read the answer
        (1.9, 0.01, 0),
        (-0.9, 0.01, 0),
        (300, 0.01, 298),
        (300, 20, 298),
        (-300, 0.01, -298.99),
        (-300, 20, -279),
        (-10, 20, 0),  # the clock may be right
    ],
)
def test_an_answer_corrects_a_clock_by_the_least_that_it_proves(
    off_s: float, took_s: float, corrected_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DynamoDB writes `Date` between the request and its answer, rounded down by up to 1 s. Nodes differ by up to 1 s.

    `off_s`: by how much the clock is ahead (negative: behind). `took_s`: how long the answer took. So an answer proves
    that a clock is ahead by at least `off_s` - 2, or behind by at least -`off_s` - `took_s` - 1.
    """
    process_clock = Clock()
    monkeypatch.setattr(time, "time", lambda: TRUE_S + off_s + took_s)
    process_clock.correct_from(formatdate(TRUE_S, usegmt=True), TRUE_S + off_s)
    assert process_clock.ahead_s == pytest.approx(corrected_s)
    assert process_clock.now_s() == pytest.approx(TRUE_S + took_s + off_s - corrected_s)


def test_an_answer_removes_the_correction_of_a_clock_that_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    process_clock, date = Clock(), formatdate(TRUE_S, usegmt=True)
    monkeypatch.setattr(time, "time", lambda: TRUE_S + 300)
    process_clock.correct_from(date, TRUE_S + 300)
    monkeypatch.setattr(time, "time", lambda: TRUE_S)
    process_clock.correct_from(date, TRUE_S)
    assert process_clock.now_s() == TRUE_S


@pytest.mark.parametrize(
    "date", ["Fri Jan 15 08:00:00 2027", "Fri, 15 Jan 2027 08:00:00", "Fri, 15 Jan 2027 08:00:00 -0000"]
)
def test_a_date_without_a_zone_is_utc(date: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """HTTP allows the format of C's asctime, which has no zone. The machine's own zone does not matter."""
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    process_clock = Clock()
    try:
        monkeypatch.setattr(time, "time", lambda: TRUE_S + 300)
        process_clock.correct_from(date, TRUE_S + 300)
    finally:
        monkeypatch.undo()
        time.tzset()
    assert process_clock.ahead_s == 298


@pytest.mark.parametrize(
    "date", ["", "yesterday", "Fri, 32 Nov 2026 14:18:00 GMT", "Fri, 27 Nov 2026 14:18:00 +99999999999999999999"]
)
def test_a_date_that_cannot_be_read_corrects_nothing(date: str) -> None:
    process_clock = Clock()
    process_clock.correct_from(date, 0)
    assert process_clock.ahead_s == 0


@pytest.fixture
def _real_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives answers the date of the engine, which tests/conftest.py replaces. The clock has no correction at first."""
    monkeypatch.setattr(client, "_date", REAL_DATE)
    monkeypatch.setattr(CLOCK, "ahead_s", 0.0)


@pytest.mark.usefixtures("_real_answers")
@pytest.mark.parametrize("off_s", [3600, -3600])
def test_an_answer_of_the_engine_corrects_the_clock_of_the_process(
    off_s: float, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    true_time = time.time
    monkeypatch.setattr(time, "time", lambda: true_time() + off_s)
    client.dynamodb_client(endpoint_url=engine.endpoint).list_tables()
    assert abs(abs(CLOCK.ahead_s) - 3600) < 60
    assert abs(clock.now_s() - true_time()) < 60


@pytest.mark.usefixtures("_real_answers")
def test_an_error_answer_corrects_nothing(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a status of 200 corrects the clock. DynamoDB rejects the signature of a clock that is far off, and the clock
    may be right before the next request."""
    true_time = time.time
    monkeypatch.setattr(time, "time", lambda: true_time() + 3600)
    with pytest.raises(ClientError):
        client.dynamodb_client(endpoint_url=engine.endpoint).describe_table(TableName="there-is-no-such-table")
    assert CLOCK.ahead_s == 0
