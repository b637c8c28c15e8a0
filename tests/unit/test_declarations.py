"""One file `counters.py` is loaded and checked, and everything else follows from it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import counters
import handlers
from tally.api.needs import Need, Table
from tally.cdk.operator import operator_needs
from tally.contract import document
from tally.contract.declarations import Declarations
from tally.errors import ConfigurationError
from tally.operations import CONSUMERS, ITEMS_CONSUMER, SCHEDULES, SERVING
from tally.pages import CREDENTIALS

LAMBDAS = Path(counters.__file__).parent
OPEN = ("increments_open", "children_open")
HEAD = "from tally.counter import Counter, declared\nfrom tally.builtin import BOT_VISITS, LIKES, PLAYS, VISITS\n"
OWN = """
TESTED = Counter("tested", prefix="SHOW", sort_key="SEATS", attribute="tested", floor=0, start=80)
COUNTERS = declared([PLAYS, LIKES, VISITS, BOT_VISITS, TESTED])
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "counters.py"
    path.write_bytes(text.encode(errors="surrogateescape"))
    return path


def test_a_team_s_own_file_is_loaded_and_nothing_is_written_beside_it(tmp_path: Path) -> None:
    found = Declarations.load(written(tmp_path, HEAD + OWN))
    assert list(found.counters) == ["plays", "likes", "visits", "bot_visits", "tested"]
    assert Need("UpdateItem", Table.COUNTS, "SHOW#") in found.needs["holds"]
    assert Need("UpdateItem", Table.COUNTS, "ITEM#") not in found.needs["holds"]
    assert Need("Query", Table.COUNTS, "SHOW#") in operator_needs(found.counters)
    assert [path.name for path in tmp_path.iterdir()] == ["counters.py"]
    assert "tested" not in counters.COUNTERS
    assert found.pages.drop == CREDENTIALS


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEAD, "declares no COUNTERS"),
        (HEAD + OWN + "\nPAGES = 'utm_*'", "PAGES must be a Pages"),
        ("COUNTERS = [1]", "declares no COUNTERS"),
        ("COUNTERS =", r"counters\.py, line 1: SyntaxError: invalid syntax$"),
        ("\nX = 'caf\udce9'", r"counters\.py(, line \d)?: SyntaxError: "),
        ("\nimport nothing_of_that_name", "line 2: ModuleNotFoundError: No module named 'nothing_of_that_name'$"),
        ("import counters_of_a_friend", r"counters_of_a_friend\.py, line 3: SyntaxError: "),
        ("from circle import COUNTERS", r"counters\.py, line 1: ImportError: .*circular import"),
        (HEAD + "T = Counter('t', flor=0)", r"counters\.py, line 3: TypeError: .*'flor'$"),
        (
            HEAD + "T = Counter('t', prefix='t', sort_key='T', attribute='t')",
            r"counters\.py, line 3: counter 't': prefix ",
        ),
        ("def one():\n    raise SystemExit\n\none()", r"counters\.py, line 2: SystemExit$"),
        ("class Odd(BaseException): pass\nraise Odd('two\\nlines')", r"counters\.py, line 2: Odd: two lines$"),
        ("COUNTERS = {'plays': 1}", "declares no COUNTERS"),
        ("COUNTERS = {}", "declares no COUNTERS"),
        (f"{HEAD}COUNTERS = {{'play': PLAYS}}", "a counter under another name than its own: play$"),
        (HEAD + "COUNTERS = declared([PLAYS, LIKES, VISITS])", "'visits': .* must list 'bot_visits', too"),
        (
            HEAD + "PLAYS = Counter('plays', prefix='P', sort_key='S', attribute='a')\n"
            "COUNTERS = declared([PLAYS, LIKES, VISITS, BOT_VISITS])",
            "'plays': .* must list the counter of tally.builtin",
        ),
        (
            HEAD + "T = Counter('t', prefix='VID', sort_key='STATS#TOTAL', attribute='a')\n"
            "COUNTERS = {c.name: c for c in (PLAYS, LIKES, VISITS, BOT_VISITS, T)}",
            "'t': sort_key .* is the key of 'plays'",
        ),
    ],
)
def test_a_file_that_is_wrong_says_why_and_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "counters_of_a_friend.py").write_text("\n\nCOUNTERS = [\n")
    (tmp_path / "circle.py").write_text("from circle_back import COUNTERS\n")
    (tmp_path / "circle_back.py").write_text("from circle import COUNTERS\n")
    with pytest.raises(ConfigurationError, match=message):
        Declarations.load(written(tmp_path, text))


def test_a_team_may_let_anyone_list_a_shipped_counter(tmp_path: Path) -> None:
    listed = "from dataclasses import replace\nPLAYS = replace(PLAYS, lists='anyone')\nCOUNTERS = declared([PLAYS])\n"
    found = Declarations.load(written(tmp_path, HEAD + listed))
    assert "GET /top" in {route.key for route in found.routes}
    assert "GET /top" not in {route.key for route in Declarations.load(LAMBDAS / "counters.py").routes}


def test_every_function_has_its_needs_and_a_handler() -> None:
    found = Declarations.load(LAMBDAS / "counters.py")
    unattended = {one.function for one in (*found.schedules, *found.readers)}
    assert set(found.needs) == set(found.routes_by_function) | unattended == {*SERVING, *CONSUMERS, *SCHEDULES, *OPEN}
    for name in found.needs:
        assert callable(getattr(handlers, name))
    for name in ("posts_open", "nothing", "drift_open"):
        with pytest.raises(AttributeError):
            getattr(handlers, name)


VOTES = """from tally.counter import ANYONE, Counter, declared

VOTES = Counter("votes", prefix="POLL", sort_key="VOTES", attribute="votes", delta=1, changes=ANYONE, read=ANYONE)
COUNTERS = declared([VOTES])
"""


def test_who_declares_votes_gets_votes_and_nothing_of_other_counters(tmp_path: Path) -> None:
    found = Declarations.load(written(tmp_path, VOTES))
    keys = {route.key for route in found.routes}
    assert {"POST /counters/votes/{id}/increments", "GET /counters/votes/{id}", "GET /tallies", "GET /health"} <= keys
    assert not [key for key in keys if key.split("/")[1] in ("posts", "videos", "visits", "holds", "mine")]
    assert not {"posts", "holds", "children"} & found.routes_by_function.keys()
    assert not found.needs["visits"]  # it serves the scripts that pages load
    prefixes = {need.prefix for needs in found.needs.values() for need in needs if need.table is Table.COUNTS}
    assert prefixes <= {"POLL#", "HEALTH", "HEARTBEAT#"}
    text = document.document_json(found.operations, found.counters)
    assert '"votes"' in text
    assert not re.search(r"/posts|/visits|/mine|#/components/schemas/Post", text)


ORDERS = """from tally.counter import ANYONE, Counter, declared
from tally.items import Items

OPEN = Items("shop", partition_prefix="CUSTOMER#", sort_key="SK", where={"status": "open"})
ORDERS = Counter("orders", prefix="CUSTOMER", sort_key="ORDERS", attribute="orders", read=ANYONE, items=OPEN)
DOCK = Items("store", partition_key="dock")
CRATES = Counter("crates", prefix="DOCK", sort_key="CRATES", attribute="crates", items=DOCK)
COUNTERS = declared([ORDERS, CRATES])
"""


def test_who_counts_items_has_a_function_that_reads_their_tables_and_none_that_changes_the_numbers(
    tmp_path: Path,
) -> None:
    found = Declarations.load(written(tmp_path, ORDERS))
    assert (found.readers[-1].function, found.readers[-1].team_tables) == (ITEMS_CONSUMER, ("shop", "store"))
    assert found.team_tables == {"shop": {"orders": ("PK", "SK", True)}, "store": {"crates": ("dock", None, False)}}
    updated = {
        name: {need.prefix for need in needs if (need.action, need.table) == ("UpdateItem", Table.COUNTS)}
        for name, needs in found.needs.items()
    }
    assert {name for name, prefixes in updated.items() if prefixes} == {ITEMS_CONSUMER, "sweep"}
    assert updated[ITEMS_CONSUMER] == updated["sweep"] == {"CUSTOMER#", "DOCK#"}
    assert callable(getattr(handlers, ITEMS_CONSUMER))


def test_the_counter_of_the_readme_works_to_the_letter(tmp_path: Path) -> None:
    section = (LAMBDAS.parent / "README.md").read_text().partition("## A counter of your own")[2]
    [example] = re.findall(r"```python\n(.*?)```", section.partition("\n## ")[0], flags=re.DOTALL)
    found = Declarations.load(written(tmp_path, (LAMBDAS / "counters.py").read_text() + example))
    assert (found.counters["seats"].start, found.warnings) == (180, [])


def test_a_counter_that_is_made_and_not_listed_is_a_warning(tmp_path: Path) -> None:
    text = VOTES + "from dataclasses import replace\nfrom tally.builtin import PLAYS\n_BASE = replace(VOTES, delta=2)\n"
    path = written(tmp_path, text)
    assert Declarations.load(path).warnings == []
    path.write_text(f'{text}SEATS = Counter("seats", prefix="FLIGHT", sort_key="SEATS", attribute="free")\n')
    assert Declarations.load(path).warnings == [
        f"{path}: SEATS is not a counter of this deployment, because COUNTERS does not list it"
    ]
