"""The app that `cdk` runs in the rehearsal: `app.py`, with a template that is changed for the emulator."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import app
from tests.emulator.stack import Json, rewrite_template, without_unsupported

BROKEN_ALARM = "Broken"
BREAKS = "TALLY_REHEARSAL_BREAKS"
"""If this variable is set, the template has an alarm without a comparison, which CloudFormation rejects."""


def for_emulator(template: Json) -> Json:
    """Returns the template for the emulator. The outputs have URLs of the emulator, which serves each API at a path."""
    supported, emulator = without_unsupported(template), os.environ["AWS_ENDPOINT_URL"]
    resources, outputs = supported["Resources"], supported["Outputs"]
    [api] = [name for name, resource in resources.items() if resource["Type"] == "AWS::ApiGatewayV2::Api"]
    url = f"{emulator}/_aws/execute-api/${{{api}}}/%24default"
    for output, value in (("ApiUrl", url), ("ConsoleUrl", f"{url}/console"), ("TokenUrl", f"{emulator}/oauth2/token")):
        outputs[output]["Value"] = {"Fn::Sub": value}
    return with_broken_alarm(supported) if os.environ.get(BREAKS) else supported


def with_broken_alarm(template: Json) -> Json:
    """Returns the template with an alarm without a comparison. CloudFormation makes every function before the alarm."""
    aliases = [name for name, resource in template["Resources"].items() if resource["Type"] == "AWS::Lambda::Alias"]
    properties = {"MetricName": "Drift", "Namespace": "Tally", "Threshold": 0, "EvaluationPeriods": 1}
    alarm = {"Type": "AWS::CloudWatch::Alarm", "Properties": properties, "DependsOn": aliases}
    return {**template, "Resources": {**template["Resources"], BROKEN_ALARM: alarm}}


if __name__ == "__main__":
    status = app.main()
    if not status:
        rewrite_template(Path(os.environ["CDK_OUTDIR"]), for_emulator)
    sys.exit(status)
