"""What of a stack costs money without a single request, as its CloudFormation template says."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KEPT = Path(__file__).with_name("stages.json")
BEFORE = "before"
"""The template of 1252df4, with 13 snapshots. It stays in the file to compare with."""
DEV, PROD = "dev", "prod"


@dataclass(frozen=True)
class Stage:
    """The parts of one stage that are billed while they exist."""

    functions: int
    snapshots_mb: tuple[int, ...]
    """The memory of each function that starts from a snapshot."""
    sweep_mb: int
    consumer_mb: int
    window_s: int
    """The tumbling window of the streams: its end is an invocation more."""
    alarms: int
    alarm_metrics: int
    """AWS bills an alarm for each metric that it looks at."""
    dashboards: int
    dashboard_metrics: int
    idle_metrics: int
    """Custom metrics that the sweep writes every minute."""
    traces_callers: bool
    traces_background: bool

    @classmethod
    def read(cls, template: Mapping[str, Any], idle_metrics: int) -> Stage:
        """From a CloudFormation template."""
        made: dict[str, list[Mapping[str, Any]]] = {}
        for resource in template["Resources"].values():
            made.setdefault(resource["Type"], []).append(resource.get("Properties", {}))
        functions = {function["Handler"].split(".")[1]: function for function in made["AWS::Lambda::Function"]}
        traced = {name for name, function in functions.items() if "TracingConfig" in function}
        return cls(
            functions=len(functions),
            snapshots_mb=tuple(function["MemorySize"] for function in functions.values() if "SnapStart" in function),
            sweep_mb=functions["sweep"]["MemorySize"],
            consumer_mb=functions["rollup"]["MemorySize"],
            window_s=made["AWS::Lambda::EventSourceMapping"][0]["TumblingWindowInSeconds"],
            alarms=len(made["AWS::CloudWatch::Alarm"]),
            alarm_metrics=sum(map(_looked_at, made["AWS::CloudWatch::Alarm"])),
            dashboards=len(made["AWS::CloudWatch::Dashboard"]),
            dashboard_metrics=sum(map(_shown, made["AWS::CloudWatch::Dashboard"])),
            idle_metrics=idle_metrics,
            traces_callers="plays" in traced,
            traces_background="sweep" in traced,
        )


def _looked_at(alarm: Mapping[str, Any]) -> int:
    return len([metric for metric in alarm["Metrics"] if "MetricStat" in metric]) if "Metrics" in alarm else 1


def _shown(dashboard: Mapping[str, Any]) -> int:
    body = dashboard["DashboardBody"]
    parts = body["Fn::Join"][1] if isinstance(body, Mapping) else [body]
    widgets = json.loads("".join(part if isinstance(part, str) else "{}" for part in parts))["widgets"]
    return sum(len(widget["properties"].get("metrics", ())) for widget in widgets)


@functools.cache
def stages() -> dict[str, Stage]:
    """By name: what `make cost` read from the templates of dev and prod, and what was there before."""
    read = json.loads(KEPT.read_text(encoding="utf-8"))
    return {name: Stage(**stage | {"snapshots_mb": tuple(stage["snapshots_mb"])}) for name, stage in read.items()}
