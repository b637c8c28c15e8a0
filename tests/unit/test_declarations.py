"""One file `counters.py` is loaded and checked, and everything else follows from it."""

from __future__ import annotations

from pathlib import Path

import pytest

import counters
import serve
from api.needs import Need, Table
from declarations import Declarations
from operations import CONSUMERS, SCHEDULES, SERVING
from stacks.operator import operator_needs
from tally.errors import ConfigurationError
from tally.pages import AS_SPELT

LAMBDAS = Path(counters.__file__).parent
OPEN = ("increments_open", "children_open")
HEAD = "from tally.counter import Counter, declared\nfrom tally.shipped import BOT_VISITS, LIKES, PLAYS, VISITS\n"
OWN = """
TESTED = Counter("tested", prefix="SHOW", sort_key="SEATS", attribute="tested", floor=0, start=80)
COUNTERS = declared([PLAYS, LIKES, VISITS, BOT_VISITS, TESTED])
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "counters.py"
    path.write_text(text)
    return path


def test_a_team_s_own_file_is_loaded_and_nothing_is_written_beside_it(tmp_path: Path) -> None:
    found = Declarations.load(written(tmp_path, HEAD + OWN))
    assert list(found.counters) == ["plays", "likes", "visits", "bot_visits", "tested"]
    assert Need("UpdateItem", Table.COUNTS, "SHOW#") in found.needs["holds"]
    assert Need("UpdateItem", Table.COUNTS, "ITEM#") not in found.needs["holds"]
    assert Need("Query", Table.COUNTS, "SHOW#") in operator_needs(found.counters)
    assert [path.name for path in tmp_path.iterdir()] == ["counters.py"]
    assert "tested" not in counters.COUNTERS
    assert found.pages is AS_SPELT


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEAD, "declares no COUNTERS"),
        (HEAD + OWN + "\nPAGES = 'utm_*'", "PAGES must be a Pages"),
        ("COUNTERS = [1]", "declares no COUNTERS"),
        ("COUNTERS =", r"counters\.py does not run: SyntaxError: "),
        ("import nothing_of_that_name", "does not run: ModuleNotFoundError: No module named 'nothing_of_that_name'$"),
        ("COUNTERS = {'plays': 1}", "declares no COUNTERS"),
        (HEAD + "COUNTERS = declared([PLAYS, LIKES, VISITS])", "'bot_visits': .* must list the one of tally.shipped"),
        (
            HEAD + "PLAYS = Counter('plays', prefix='P', sort_key='S', attribute='a')\n"
            "COUNTERS = declared([PLAYS, LIKES, VISITS, BOT_VISITS])",
            "'plays': .* must list the one of tally.shipped",
        ),
        (
            HEAD + "T = Counter('t', prefix='VID', sort_key='STATS#TOTAL', attribute='a')\n"
            "COUNTERS = {c.name: c for c in (PLAYS, LIKES, VISITS, BOT_VISITS, T)}",
            "'t': sort_key .* is 'plays''s",
        ),
    ],
)
def test_a_file_that_is_wrong_says_why(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Declarations.load(written(tmp_path, text))


def test_every_function_has_its_needs_and_a_handler() -> None:
    found = Declarations.load(LAMBDAS / "counters.py")
    unattended = {one.function for one in (*found.schedules, *found.readers)}
    assert set(found.needs) == set(found.functions) | unattended == {*SERVING, *CONSUMERS, *SCHEDULES, *OPEN}
    for name in found.needs:
        assert callable(getattr(serve, name))
    for name in ("posts_open", "nothing", "drift_open"):
        with pytest.raises(AttributeError):
            getattr(serve, name)
