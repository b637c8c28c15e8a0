"""Tests that `make dev` reads the metrics of functions (EMF) from their logs."""

from __future__ import annotations

import json
from typing import Any

from tests.e2e.dev import KEY, PLAYS_FUNCTION, Dev
from tests.patience import wait_for


def test_metrics_of_functions_are_shown(dev: Dev) -> None:
    def counted() -> float:
        document: Any = dev.call("GET", "/dev/metrics").body
        dimensions = {"counter": "plays", "service": "Tally-dev"}
        sums = [
            metric["sum"]
            for metric in document["metrics"]
            if metric["metric"] == "Counted" and metric["dimensions"] == dimensions
        ]
        return float(sums[0]) if sums else 0

    before = counted()
    assert dev.play("video-of-metrics", f"{KEY}-metrics").status == 200
    wait_for(lambda: counted() > before)


def test_every_line_of_a_functions_log_is_json(dev: Dev) -> None:
    """With AWS_LAMBDA_LOG_FORMAT=JSON, AWS's runtime client writes each line as JSON, as in Lambda."""
    for _ in range(2):
        assert dev.play("video-of-json", f"{KEY}-json").status == 200

    def lines() -> list[dict[str, Any]]:
        written = (dev.data / f"logs/{PLAYS_FUNCTION}.log").read_text()
        finished_lines = written.rpartition("\n")[0].splitlines()
        return [json.loads(line) for line in finished_lines]

    wait_for(lambda: any("Replayed" in line and "_aws" in line for line in lines()))
    assert any(
        (line.get("message"), line.get("level"), line.get("status")) == ("answered", "INFO", 200) for line in lines()
    )
