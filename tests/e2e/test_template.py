"""Reading the stack's template, and making of it what runs here."""

from __future__ import annotations

import copy
import json
import platform
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tally.dev.base.engine import Engine
from tally.dev.base.errors import LocalError
from tally.dev.stack import synth, tables
from tally.dev.stack.template import Template, parse, read, synthesized

ROOT = Path(__file__).resolve().parents[2]
COUNTS, RECEIPTS = (f"Tally-local-{name}Table" for name in ("Counts", "Receipts"))


@pytest.fixture(scope="module")
def document() -> Any:
    """The stack's own template."""
    [path] = synth.assembly(ROOT).glob("*.template.json")
    return json.loads(path.read_text())


@pytest.fixture(scope="module")
def template(document: Any) -> Template:
    return parse(document)


FUNCTION, ROUTE = "AWS::Lambda::Function", "AWS::ApiGatewayV2::Route"
INTEGRATION, MAPPING, RULE = "AWS::ApiGatewayV2::Integration", "AWS::Lambda::EventSourceMapping", "AWS::Events::Rule"


def variable(value: object) -> dict[str, Any]:
    return {"Environment": {"Variables": {"X": value}}}


@pytest.mark.parametrize(
    ("type_", "change", "says"),
    [
        ("AWS::DynamoDB::Table", {"KeySchema": None}, "Table has no KeySchema"),
        (FUNCTION, variable({"Fn::If": ["a", 1, 2]}), "Fn::If"),
        (INTEGRATION, {"IntegrationUri": {"Ref": "UserPool"}}, "UserPool, which is no function"),
        (ROUTE, {"AuthorizationType": "AWS_IAM"}, "authorization AWS_IAM"),
        (RULE, {"ScheduleExpression": "cron(* * * * ? *)"}, "cannot read"),
        (MAPPING, {"EventSourceArn": {"Fn::GetAtt": ["DeadLetterBucket", "Arn"]}}, "knows tables' streams only"),
    ],
)
def test_an_unreadable_part_is_named(document: Any, type_: str, change: dict[str, Any], says: str) -> None:
    changed = copy.deepcopy(document)
    properties = next(one["Properties"] for one in changed["Resources"].values() if one["Type"] == type_)
    properties |= change
    for name in [name for name, value in change.items() if value is None]:
        del properties[name]
    with pytest.raises(LocalError, match=says):
        parse(changed)


def test_tables_are_created_once_with_stream_and_ttl_and_keep_what_they_hold(template: Template) -> None:
    found = template.tables
    with Engine() as engine, closing(tables.client(engine.endpoint)) as client:
        bare = {name: value for name, value in found[COUNTS].arguments.items() if name != "StreamSpecification"}
        client.create_table(TableName=COUNTS, **bare)
        arns = tables.create(found.values(), engine.endpoint)
        client.put_item(TableName=RECEIPTS, Item={"id": {"S": "a"}})
        assert tables.create(found.values(), engine.endpoint) == arns
        assert client.scan(TableName=RECEIPTS)["Count"] == 1
        described = client.describe_table(TableName=COUNTS)["Table"]
        assert described["StreamSpecification"]["StreamEnabled"]
        assert arns[COUNTS] == described["LatestStreamArn"]
        ttl = client.describe_time_to_live(TableName=RECEIPTS)["TimeToLiveDescription"]
        assert (ttl["TimeToLiveStatus"], ttl["AttributeName"]) == ("ENABLED", "expiration")
        # The sweep lists the stream's shards: a made-up ARN leads nowhere.
        knowing = template.with_streams(arns).functions["sweep"].environment
        assert knowing == template.functions["sweep"].environment | {
            "TALLY_COUNTS_STREAM": arns[COUNTS], "TALLY_RECEIPTS_STREAM": arns[RECEIPTS],
        }  # fmt: skip
        client.delete_table(TableName=COUNTS)
        client.create_table(TableName=COUNTS, **found[RECEIPTS].arguments)
        with pytest.raises(LocalError, match=f"{COUNTS} .* has another key"):
            tables.create(found.values(), engine.endpoint)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout whose app.py writes a template with a bucket, and counts how often it ran."""
    (tmp_path / "lambdas").mkdir()
    (tmp_path / "lambdas/plays.py").write_text("")
    (tmp_path / "cdk.json").write_text('{"context": {"a": 1}}')
    (tmp_path / "app.py").write_text(
        "import json, os, pathlib, time\n"
        "context = json.loads(os.environ['CDK_CONTEXT_JSON'])\n"
        "assert context == {'a': 1, 'aws:cdk:bundling-stacks': [], 'throttle': '1'}, context\n"
        "with open('runs', 'a') as runs: runs.write('x')\n"
        "time.sleep(0.2)\n"
        "out = pathlib.Path(os.environ['CDK_OUTDIR'])\n"
        "out.mkdir()\n"
        "made = {'Resources': {'Bucket': {'Type': 'AWS::S3::Bucket'}}}\n"
        "(out / 'Tally.template.json').write_text(json.dumps(made))\n"
    )
    return tmp_path


def test_it_synthesizes_only_what_changed(checkout: Path) -> None:
    def runs() -> int:
        assert synthesized(checkout).buckets == ("tally-local-bucket",)
        return len((checkout / "runs").read_text())

    assert (runs(), runs()) == (1, 1)
    (checkout / "lambdas/plays.py").write_text("CHANGED = True")
    assert runs() == 2
    (checkout / "lambdas/likes.py").write_text("")
    assert runs() == 3
    (checkout / "README.md").write_text("nothing that it is made from")
    assert runs() == 3


def test_a_stack_that_does_not_synthesize_is_one_line_and_leaves_nothing_stale(checkout: Path) -> None:
    synthesized(checkout)
    good = (checkout / "app.py").read_text()
    (checkout / "app.py").write_text("print('some words')\nraise ValueError('no such construct')")
    for _ in range(2):
        with pytest.raises(LocalError, match=r"ValueError: no such construct \(all output: .build/synth.log\)"):
            synthesized(checkout)
    assert "some words" in (checkout / ".build/synth.log").read_text()
    # One that only breaks a rule runs here.
    rule = "(out / 'validation-report.json').write_text('{}')\nraise SystemExit(1)\n"
    (checkout / "app.py").write_text(good + rule)
    assert synthesized(checkout).buckets


def test_a_folder_without_an_app_or_a_template_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match=r"no app\.py"):
        synthesized(tmp_path)
    with pytest.raises(LocalError, match="holds 0 templates"):
        read(tmp_path)


def test_a_missing_node_is_an_error_only_when_it_synthesizes(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JSII_NODE", raising=False)
    with monkeypatch.context() as without:
        without.setattr(shutil, "which", lambda _: None)
        with pytest.raises(LocalError, match="Node is missing"):
            synthesized(checkout)
    synthesized(checkout)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert synthesized(checkout).buckets


@pytest.mark.parametrize(
    ("system", "machine", "way"),
    [
        ("Linux", "aarch64", "for linux-arm64: run `npm install --no-save @dynoxide/linux-arm64@"),
    ],
)
def test_a_missing_engine_is_one_line_that_says_where_to_get_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, system: str, machine: str, way: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    with pytest.raises(LocalError, match=f"no DynamoDB engine {way}") as missing:
        Engine().start()
    assert "\n" not in str(missing.value)
