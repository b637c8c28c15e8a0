"""What functions report in EMF is gathered from their logs."""

from __future__ import annotations

from typing import Any

from tests.e2e.dev import KEY, Dev
from tests.patience import wait_for


def test_what_functions_reported_is_shown(dev: Dev) -> None:
    def counted() -> float:
        document: Any = dev.call("GET", "/dev/metrics").body
        wanted = {"counter": "plays", "service": "Tally-dev"}
        found = [one for one in document["metrics"] if one["metric"] == "Counted" and one["dimensions"] == wanted]
        return float(found[0]["sum"]) if found else 0

    before = counted()
    assert dev.play("metrics", f"{KEY}-metrics").status == 200
    wait_for(lambda: counted() > before)
