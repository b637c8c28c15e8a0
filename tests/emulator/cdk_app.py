"""What `cdk` runs in place of `app.py` in the rehearsal: the same app, its template changed for the emulator."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import app
from tests.emulator.stack import Json, rewrite, without_unsupported

BREAKS = "TALLY_REHEARSAL_BREAKS"
"""If it is set, one resource cannot be made: an alarm that lacks its comparison."""


def reachable(template: Json) -> Json:
    """The template for the emulator. Its outputs lead to the emulator, which serves an API by its path."""
    made, emulator = without_unsupported(template), os.environ["AWS_ENDPOINT_URL"]
    resources, outputs = made["Resources"], made["Outputs"]
    [api] = [name for name, found in resources.items() if found["Type"] == "AWS::ApiGatewayV2::Api"]
    url = f"{emulator}/_aws/execute-api/${{{api}}}/%24default"
    for output, leads in (("ApiUrl", url), ("ConsoleUrl", f"{url}/console"), ("TokenUrl", f"{emulator}/oauth2/token")):
        outputs[output]["Value"] = {"Fn::Sub": leads}
    return broken(made) if os.environ.get(BREAKS) else made


def broken(template: Json) -> Json:
    """The template with an alarm that lacks its comparison, made after every function has changed."""
    aliases = [name for name, found in template["Resources"].items() if found["Type"] == "AWS::Lambda::Alias"]
    half = {"MetricName": "Drift", "Namespace": "Tally", "Threshold": 0, "EvaluationPeriods": 1}
    wrong = {"Type": "AWS::CloudWatch::Alarm", "Properties": half, "DependsOn": aliases}
    return {**template, "Resources": {**template["Resources"], "Broken": wrong}}


if __name__ == "__main__":
    status = app.main()
    if not status:
        rewrite(Path(os.environ["CDK_OUTDIR"]), reachable)
    sys.exit(status)
