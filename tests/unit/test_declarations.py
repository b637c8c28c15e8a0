"""Declarations: `counters.py` is loaded and checked; routes, functions and their rights follow from it."""

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
OPEN = ("increments_open", "children_open")  # the functions for callers who do not sign in
IMPORTS = "from tally.counter import Counter, declared\nfrom tally.builtin import BOT_VISITS, LIKES, PLAYS, VISITS\n"
TESTED_COUNTER = """
TESTED = Counter("tested", prefix="SHOW", sort_key="SEATS", attribute="tested", floor=0, start=80)
COUNTERS = declared([PLAYS, LIKES, VISITS, BOT_VISITS, TESTED])
"""


def write_counters(folder: Path, text: str) -> Path:
    path = folder / "counters.py"
    path.write_bytes(text.encode(errors="surrogateescape"))  # `\udce9` becomes a byte that is not UTF-8
    return path


def test_the_file_of_a_team_is_loaded_and_nothing_is_written_beside_it(tmp_path: Path) -> None:
    loaded = Declarations.load(write_counters(tmp_path, IMPORTS + TESTED_COUNTER))
    assert list(loaded.counters) == ["plays", "likes", "visits", "bot_visits", "tested"]
    assert Need("UpdateItem", Table.COUNTS, "SHOW#") in loaded.needs["holds"]
    assert Need("UpdateItem", Table.COUNTS, "ITEM#") not in loaded.needs["holds"], "a counter of this repository"
    assert Need("Query", Table.COUNTS, "SHOW#") in operator_needs(loaded.counters)
    assert [path.name for path in tmp_path.iterdir()] == ["counters.py"]
    assert "tested" not in counters.COUNTERS
    assert loaded.pages.drop == CREDENTIALS


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (IMPORTS, "declares no COUNTERS"),
        (IMPORTS + TESTED_COUNTER + "\nPAGES = 'utm_*'", "PAGES must be a Pages"),
        ("COUNTERS = [1]", "declares no COUNTERS"),
        ("COUNTERS =", r"counters\.py, line 1: SyntaxError: invalid syntax$"),
        ("\nX = 'caf\udce9'", r"counters\.py(, line \d)?: SyntaxError: "),
        ("\nimport nothing_of_that_name", "line 2: ModuleNotFoundError: No module named 'nothing_of_that_name'$"),
        ("import counters_of_a_friend", r"counters_of_a_friend\.py, line 3: SyntaxError: "),
        ("from circle import COUNTERS", r"counters\.py, line 1: ImportError: .*circular import"),
        (IMPORTS + "T = Counter('t', flor=0)", r"counters\.py, line 3: TypeError: .*'flor'$"),
        (
            IMPORTS + "T = Counter('t', prefix='t', sort_key='T', attribute='t')",
            r"counters\.py, line 3: counter 't': prefix ",
        ),
        ("def one():\n    raise SystemExit\n\none()", r"counters\.py, line 2: SystemExit$"),
        ("class Odd(BaseException): pass\nraise Odd('two\\nlines')", r"counters\.py, line 2: Odd: two lines$"),
        ("COUNTERS = {'plays': 1}", "declares no COUNTERS"),
        ("COUNTERS = {}", "declares no COUNTERS"),
        (f"{IMPORTS}COUNTERS = {{'likes': LIKES, 'play': PLAYS}}", "a counter under another name than its own: play$"),
        (IMPORTS + "COUNTERS = declared([PLAYS, LIKES, VISITS])", "'visits': .* must list 'bot_visits', too"),
        (IMPORTS + "COUNTERS = declared([PLAYS, LIKES, BOT_VISITS])", "'bot_visits': .* must list 'visits', too"),
        (
            IMPORTS + "PLAYS = Counter('plays', prefix='P', sort_key='S', attribute='a')\n"
            "COUNTERS = declared([PLAYS, LIKES, VISITS, BOT_VISITS])",
            "'plays': .* must list the counter of tally.builtin",
        ),
        (
            IMPORTS + "T = Counter('t', prefix='VID', sort_key='STATS#TOTAL', attribute='a')\n"
            "COUNTERS = {c.name: c for c in (PLAYS, LIKES, VISITS, BOT_VISITS, T)}",
            "'t': sort_key .* is the key of 'plays'",
        ),
    ],
)
def test_an_invalid_file_raises_an_error_with_the_line_and_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "counters_of_a_friend.py").write_text("\n\nCOUNTERS = [\n")
    (tmp_path / "circle.py").write_text("from circle_back import COUNTERS\n")
    (tmp_path / "circle_back.py").write_text("from circle import COUNTERS\n")
    with pytest.raises(ConfigurationError, match=message):
        Declarations.load(write_counters(tmp_path, text))


def test_a_team_may_let_anyone_list_a_builtin_counter(tmp_path: Path) -> None:
    text = "from dataclasses import replace\nPLAYS = replace(PLAYS, lists='anyone')\nCOUNTERS = declared([PLAYS])\n"
    loaded = Declarations.load(write_counters(tmp_path, IMPORTS + text))
    assert "GET /top" in {route.key for route in loaded.routes}
    assert "GET /top" not in {route.key for route in Declarations.load(LAMBDAS / "counters.py").routes}


def test_every_function_declares_its_needs_and_has_a_handler() -> None:
    loaded = Declarations.load(LAMBDAS / "counters.py")
    background = {entry.function for entry in (*loaded.schedules, *loaded.readers)}
    assert set(loaded.needs) == set(loaded.routes_by_function) | background == {*SERVING, *CONSUMERS, *SCHEDULES, *OPEN}
    for name in loaded.needs:
        assert callable(getattr(handlers, name))
    for name in ("posts_open", "nothing", "drift_open"):  # no function has such a name
        with pytest.raises(AttributeError):
            getattr(handlers, name)


VOTES = """from tally.counter import ANYONE, Counter, declared

VOTES = Counter("votes", prefix="POLL", sort_key="VOTES", attribute="votes", delta=1, changes=ANYONE, read=ANYONE)
COUNTERS = declared([VOTES])
"""


def test_a_file_that_declares_votes_gets_the_routes_and_rights_of_votes_alone(tmp_path: Path) -> None:
    loaded = Declarations.load(write_counters(tmp_path, VOTES))
    keys = {route.key for route in loaded.routes}
    assert {"POST /counters/votes/{id}/increments", "GET /counters/votes/{id}", "GET /tallies", "GET /health"} <= keys
    assert not [key for key in keys if key.split("/")[1] in ("posts", "videos", "visits", "holds", "mine")]
    assert not {"posts", "holds", "children"} & loaded.routes_by_function.keys()
    assert not loaded.needs["visits"]  # the function serves the scripts of the JavaScript client, and needs no table
    prefixes = {need.prefix for needs in loaded.needs.values() for need in needs if need.table is Table.COUNTS}
    assert prefixes <= {"POLL#", "HEALTH", "HEARTBEAT#"}
    text = document.document_json(loaded.operations, loaded.counters)
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


def test_a_file_that_counts_items_gets_a_consumer_and_no_function_by_which_callers_change_numbers(
    tmp_path: Path,
) -> None:
    loaded = Declarations.load(write_counters(tmp_path, ORDERS))
    assert (loaded.readers[-1].function, loaded.readers[-1].team_tables) == (ITEMS_CONSUMER, ("shop", "store"))
    # The keys of each table, and whether its counter needs the records' images.
    assert loaded.team_tables == {"shop": {"orders": ("PK", "SK", True)}, "store": {"crates": ("dock", None, False)}}
    updated = {
        name: {need.prefix for need in needs if (need.action, need.table) == ("UpdateItem", Table.COUNTS)}
        for name, needs in loaded.needs.items()
    }
    assert {name for name, prefixes in updated.items() if prefixes} == {ITEMS_CONSUMER, "sweep"}
    assert updated[ITEMS_CONSUMER] == updated["sweep"] == {"CUSTOMER#", "DOCK#"}
    assert callable(getattr(handlers, ITEMS_CONSUMER))


def test_the_counter_of_the_readme_works_as_it_is_printed(tmp_path: Path) -> None:
    section = (LAMBDAS.parent / "README.md").read_text().partition("## A counter of your own")[2]
    [example] = re.findall(r"```python\n(.*?)```", section.partition("\n## ")[0], flags=re.DOTALL)
    loaded = Declarations.load(write_counters(tmp_path, (LAMBDAS / "counters.py").read_text() + example))
    assert (loaded.counters["seats"].start, loaded.warnings) == (180, [])


def test_a_file_with_a_counter_that_is_not_in_its_list_gives_a_warning(tmp_path: Path) -> None:
    text = VOTES + "from dataclasses import replace\nfrom tally.builtin import PLAYS\n_BASE = replace(VOTES, delta=2)\n"
    path = write_counters(tmp_path, text)
    assert Declarations.load(path).warnings == [], "built-in counters, and names that begin with _, need not be listed"
    path.write_text(f'{text}SEATS = Counter("seats", prefix="FLIGHT", sort_key="SEATS", attribute="free")\n')
    assert Declarations.load(path).warnings == [
        f"{path}: SEATS is not a counter of this deployment, because COUNTERS does not list it"
    ]
