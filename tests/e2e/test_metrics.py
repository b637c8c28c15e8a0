"""EMF lines of functions, gathered from their logs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dev.functions.metrics import Metrics
from tests.e2e.dev import KEY, Dev
from tests.patience import wait_for


def line(value: object = 1, name: str = "Counted", **dimensions: str) -> str:
    directive = {
        "Namespace": "Tally",
        "Dimensions": [sorted(dimensions)],
        "Metrics": [{"Name": name, "Unit": "Count"}],
    }
    document = {"_aws": {"Timestamp": 0, "CloudWatchMetrics": [directive]}, name: value, **dimensions}
    return json.dumps(document) + "\n"


def gathered(tmp_path: Path, *lines: str) -> Metrics:
    log = tmp_path / "f.log"
    log.write_text(line(1000, counter="before"))
    made = Metrics([log, tmp_path / "none.log"])
    with log.open("a") as file:
        file.writelines(lines)
    made.look()
    return made


def test_values_are_summed_by_metric_and_dimensions(tmp_path: Path) -> None:
    made = gathered(
        tmp_path,
        line([2, 3.5], counter="plays"),
        line(9, counter="plays"),
        line(1, counter="likes"),
        "an ordinary line\n",
        '{"_aws": "nonsense"}\n',
        '{"_aws": {"CloudWatchMetrics": [{"Namespace": "T", "Dimensions": [["gone"]], "Metrics": [{"Name": "X"}]}]}}\n',
        line("text", counter="plays"),
    )
    likes, plays = made.document()["metrics"]
    assert plays == {
        "namespace": "Tally",
        "metric": "Counted",
        "dimensions": {"counter": "plays"},
        "unit": "Count",
        "sum": 14.5,
        "count": 3,
        "min": 2,
        "max": 9,
        "last": 9,
    }
    assert (likes["dimensions"], likes["sum"]) == ({"counter": "likes"}, 1)


def test_a_partial_line_is_read_when_it_is_whole(tmp_path: Path) -> None:
    whole = line(7, counter="plays")
    made = gathered(tmp_path, whole[:50])
    assert made.document()["metrics"] == []
    with (tmp_path / "f.log").open("a") as log:
        log.write(whole[50:])
    made.look()
    assert made.document()["metrics"][0]["sum"] == 7


def test_what_functions_reported_is_shown(dev: Dev) -> None:
    def counted() -> float:
        document: Any = dev.call("GET", "/dev/metrics").body
        wanted = {"counter": "plays", "service": "Tally-dev"}
        found = [one for one in document["metrics"] if one["metric"] == "Counted" and one["dimensions"] == wanted]
        return float(found[0]["sum"]) if found else 0

    before = counted()
    assert dev.play("metrics", f"{KEY}-metrics").status == 200
    wait_for(lambda: counted() > before)
