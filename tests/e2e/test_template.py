"""Reading a template: a miniature, and the stack's own."""

from __future__ import annotations

import copy
import json
import multiprocessing
import platform
import shutil
import signal
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dev.__main__ import main as local_main
from dev.base.engine import LOCKED, VERSION, Engine
from dev.base.engine_file import index_stream_records
from dev.base.errors import LocalError
from dev.functions import runtime
from dev.stack import synth, tables
from dev.stack.mappings import StreamMapping
from dev.stack.template import Authorizer, Cors, Throttle, parse, read, synthesized
from tests.patience import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
MINIATURE: dict[str, Any] = json.loads(Path(__file__).with_name("miniature.template.json").read_text())
COUNTS, RECEIPTS = "Tally-local-CountsTable", "Tally-local-ReceiptsTable"


def test_tables_with_their_streams_and_ttl() -> None:
    found = parse(MINIATURE).tables
    assert set(found) == {COUNTS, RECEIPTS}
    assert found[COUNTS].arguments["StreamSpecification"] == {
        "StreamEnabled": True,
        "StreamViewType": "NEW_AND_OLD_IMAGES",
    }
    assert "PointInTimeRecoverySpecification" not in found[COUNTS].arguments
    assert (found[COUNTS].ttl_attribute, found[RECEIPTS].ttl_attribute) == (None, "expiration")


def test_functions_with_their_environment_resolved() -> None:
    [plays] = parse(MINIATURE).functions.values()
    assert (plays.name, plays.handler, plays.timeout_s, plays.memory_mb) == (
        "plays",
        "serve.plays",
        15.0,
        128,
    )
    assert plays.environment == {
        "TALLY_COUNTS_TABLE": COUNTS,
        "ARN": f"arn:aws:dynamodb:eu-west-1:000000000000:table/{COUNTS}",
        "URL": "https://Pool.amazonaws.com",
        "SUB": f"eu-west-1/{RECEIPTS}/Pool.Id",
        "NUMBER": "7",
    }


def test_routes_with_their_function_authorizer_and_throttle() -> None:
    play, get = parse(MINIATURE).routes
    assert (play.key, play.function, play.authorizer) == ("POST /videos/{id}/plays", "plays", None)
    assert (play.throttle, get.throttle) == (Throttle(500, 1000), Throttle(10, 20))
    assert get.authorizer == Authorizer("https://cognito-idp.eu-west-1.amazonaws.com/Pool", ("Client",))
    assert get.scopes == ("tally/read",)


def test_cors_and_access_log() -> None:
    template = parse(MINIATURE)
    assert template.cors == Cors(
        ("https://a.example.com",), ("GET", "POST"), ("authorization",), ("ETag",), max_age_s=60
    )
    assert template.access_log_format == "$context.requestId"


@pytest.mark.parametrize(
    ("resource", "change", "says"),
    [
        ("CountsTable", {"KeySchema": None}, "CountsTable has no KeySchema"),
        ("PlaysFunction", {"Handler": None}, "PlaysFunction has no Handler"),
        ("PlaysFunction", {"Environment": {"Variables": {"X": {"Fn::If": ["a", 1, 2]}}}}, "Fn::If"),
        ("PlaysFunction", {"Environment": {"Variables": {"X": {"Ref": "Gone"}}}}, "Gone, which is not in it"),
        ("Integration", {"IntegrationUri": {"Ref": "Pool"}}, "Pool, which is no function"),
        ("Integration", {"IntegrationUri": "https://example.com"}, "cannot resolve"),
        ("Play", {"AuthorizationType": "AWS_IAM"}, "authorization AWS_IAM"),
        ("Play", {"Target": "integrations/Gone"}, "leads to Gone"),
    ],
)
def test_an_unreadable_part_is_named(resource: str, change: dict[str, Any], says: str) -> None:
    document = copy.deepcopy(MINIATURE)
    properties = document["Resources"][resource]["Properties"]
    for name, value in change.items():
        properties[name] = value
        if value is None:
            del properties[name]
    with pytest.raises(LocalError, match=says):
        parse(document)


ALIAS = {"Fn::Join": ["", [{"Fn::Select": [6, {"Fn::Split": [":", {"Ref": "PlaysAlias"}]}]}, ":live"]]}
MAPPING = {
    "EventSourceArn": {"Fn::GetAtt": ["CountsTable", "StreamArn"]},
    "FunctionName": ALIAS,
    "StartingPosition": "TRIM_HORIZON",
    "BatchSize": 1000,
    "MaximumBatchingWindowInSeconds": 1,
    "TumblingWindowInSeconds": 60,
    "BisectBatchOnFunctionError": True,
    "FunctionResponseTypes": ["ReportBatchItemFailures"],
    "MaximumRetryAttempts": -1,
    "FilterCriteria": {"Filters": [{"Pattern": '{"eventName": ["INSERT"]}'}]},
}


def streamed(**changes: Any) -> dict[str, Any]:
    """The miniature with an event source mapping, and a bucket that its function knows."""
    document = copy.deepcopy(MINIATURE)
    resources = document["Resources"]
    resources["Mapping"] = {"Type": "AWS::Lambda::EventSourceMapping", "Properties": MAPPING | changes}
    resources["DeadLetterBucket"] = {"Type": "AWS::S3::Bucket"}
    variables = resources["PlaysFunction"]["Properties"]["Environment"]["Variables"]
    variables |= {"BUCKET": {"Ref": "DeadLetterBucket"}, "BUCKET_ARN": {"Fn::GetAtt": ["DeadLetterBucket", "Arn"]}}
    return document


def test_event_source_mappings_and_buckets() -> None:
    template = parse(streamed())
    assert template.mappings == (
        StreamMapping(
            "Mapping",
            COUNTS,
            "plays",
            batch_records=1000,
            batch_window_s=1,
            tumbling_window_s=60,
            filters=({"eventName": ["INSERT"]},),
        ),
    )
    assert template.buckets == ("tally-local-deadletterbucket",)
    found = template.functions["plays"].environment
    assert (found["BUCKET"], found["BUCKET_ARN"]) == (
        "tally-local-deadletterbucket",
        "arn:aws:s3:::tally-local-deadletterbucket",
    )


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"EventSourceArn": {"Fn::GetAtt": ["ReceiptsTable", "StreamArn"]}}, "ReceiptsTable, which has no stream"),
        ({"EventSourceArn": {"Fn::GetAtt": ["DeadLetterBucket", "Arn"]}}, "knows tables' streams only"),
        ({"FunctionName": "elsewhere:live"}, "invokes elsewhere:live, which is no function"),
        ({"DestinationConfig": {"OnFailure": {}}}, "Mapping has DestinationConfig"),
    ],
)
def test_a_mapping_that_cannot_run_here_is_named(change: dict[str, Any], says: str) -> None:
    with pytest.raises(LocalError, match=says):
        parse(streamed(**change))


def test_a_folder_without_one_template_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match="holds 0 templates"):
        read(tmp_path)


def test_the_stack_itself_can_be_read() -> None:
    """The routes are tests/infra's; here, each of them leads to a function that runs, as do schedules and streams."""
    template = synthesized(ROOT)
    used = {route.function for route in template.routes} | {schedule.function for schedule in template.schedules}
    assert set(template.functions) == used | {mapping.function for mapping in template.mappings}
    assert min(map(len, template.tables)) >= 11


def test_tables_are_created_once_and_keep_what_they_hold() -> None:
    found = parse(MINIATURE).tables
    with Engine() as engine:
        tables.create(found.values(), engine.endpoint)
        client = tables.client(engine.endpoint)
        client.put_item(TableName=RECEIPTS, Item={"id": {"S": "a"}})
        tables.create(found.values(), engine.endpoint)
        assert client.scan(TableName=RECEIPTS)["Count"] == 1
        assert client.describe_table(TableName=COUNTS)["Table"]["StreamSpecification"]["StreamEnabled"]
        ttl = client.describe_time_to_live(TableName=RECEIPTS)["TimeToLiveDescription"]
        assert (ttl["TimeToLiveStatus"], ttl["AttributeName"]) == ("ENABLED", "expiration")

        client.delete_table(TableName=COUNTS)
        client.create_table(TableName=COUNTS, **found[RECEIPTS].arguments)
        with pytest.raises(LocalError, match=f"{COUNTS} .* has another key"):
            tables.create(found.values(), engine.endpoint)
        client.close()


def test_functions_get_the_engines_own_stream_arns() -> None:
    """The sweep lists the stream's shards: a made-up ARN leads nowhere."""
    document = copy.deepcopy(MINIATURE)
    variables = document["Resources"]["PlaysFunction"]["Properties"]["Environment"]["Variables"]
    variables["TALLY_COUNTS_STREAM"] = {"Fn::GetAtt": ["CountsTable", "StreamArn"]}
    template = parse(document)
    with Engine() as engine:
        arns = tables.create(template.tables.values(), engine.endpoint)
        client = tables.client(engine.endpoint)
        assert arns == {COUNTS: client.describe_table(TableName=COUNTS)["Table"]["LatestStreamArn"]}
        assert tables.create(template.tables.values(), engine.endpoint) == arns
        client.close()
    found = template.with_streams(arns).functions["plays"].environment
    assert found["TALLY_COUNTS_STREAM"] == arns[COUNTS]
    assert {**found, "TALLY_COUNTS_STREAM": ""} == {
        **template.functions["plays"].environment, "TALLY_COUNTS_STREAM": ""
    }  # fmt: skip


def test_a_table_that_had_no_stream_gets_it() -> None:
    found = parse(MINIATURE).tables[COUNTS]
    with Engine() as engine:
        client = tables.client(engine.endpoint)
        bare = {name: value for name, value in found.arguments.items() if name != "StreamSpecification"}
        client.create_table(TableName=COUNTS, **bare)
        tables.create([found], engine.endpoint)
        assert client.describe_table(TableName=COUNTS)["Table"]["StreamSpecification"]["StreamEnabled"]
        client.close()


def test_the_engines_stream_records_are_indexed_while_it_runs(tmp_path: Path) -> None:
    path = tmp_path / "engine.db"
    with Engine(path) as engine:
        tables.create(parse(MINIATURE).tables.values(), engine.endpoint)
        for _ in range(2):
            index_stream_records(path)
        with closing(sqlite3.connect(path)) as database:
            assert "tally_stream_order" in {row[1] for row in database.execute("PRAGMA index_list(_stream_records)")}
    index_stream_records(tmp_path / "of_another_version.db")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout whose app.py writes the miniature, and counts how often it ran."""
    (tmp_path / "lambdas").mkdir()
    (tmp_path / "lambdas/plays.py").write_text("")
    (tmp_path / "cdk.json").write_text('{"context": {"a": 1}}')
    (tmp_path / "miniature.json").write_text(json.dumps(MINIATURE))
    (tmp_path / "app.py").write_text(
        "import json, os, pathlib, time\n"
        "context = json.loads(os.environ['CDK_CONTEXT_JSON'])\n"
        "assert context == {'a': 1, 'aws:cdk:bundling-stacks': []}, context\n"
        "with open('runs', 'a') as runs: runs.write('x')\n"
        "time.sleep(0.2)\n"
        "out = pathlib.Path(os.environ['CDK_OUTDIR'])\n"
        "out.mkdir()\n"
        "(out / 'Tally.template.json').write_text(pathlib.Path('miniature.json').read_text())\n"
    )
    return tmp_path


def test_it_synthesizes_only_what_changed(checkout: Path) -> None:
    def runs() -> int:
        return len((checkout / "runs").read_text())

    assert set(synthesized(checkout).tables) == {COUNTS, RECEIPTS}
    synthesized(checkout)
    assert runs() == 1
    (checkout / "lambdas/plays.py").write_text("CHANGED = True")
    synthesized(checkout)
    assert runs() == 2
    (checkout / "lambdas/likes.py").write_text("")
    synthesized(checkout)
    assert runs() == 3
    (checkout / "README.md").write_text("nothing that it is made from")
    synthesized(checkout)
    assert runs() == 3


def test_options_of_a_deployment_make_another_template() -> None:
    assert synth.fingerprint(ROOT) == synth.fingerprint(ROOT, {})
    assert synth.fingerprint(ROOT) != synth.fingerprint(ROOT, {"likersVisible": "nobody"})


def test_two_at_once_synthesize_once(checkout: Path) -> None:
    context = multiprocessing.get_context("fork")
    others = [context.Process(target=synthesized, args=(checkout,)) for _ in range(3)]
    for other in others:
        other.start()
    for other in others:
        other.join(PATIENCE_S)
    assert [other.exitcode for other in others] == [0, 0, 0]
    assert (checkout / "runs").read_text() == "x"


def test_a_stack_that_does_not_synthesize_is_one_line_and_leaves_nothing_stale(checkout: Path) -> None:
    synthesized(checkout)
    good = (checkout / "app.py").read_text()
    (checkout / "app.py").write_text("print('some words')\nraise ValueError('no such construct')")
    for _ in range(2):
        with pytest.raises(LocalError, match=r"ValueError: no such construct \(all output: .build/synth.log\)"):
            synthesized(checkout)
    assert "some words" in (checkout / ".build/synth.log").read_text()
    (checkout / "app.py").write_text(good)
    assert synthesized(checkout).routes


def test_a_stack_that_only_breaks_a_rule_runs_here(checkout: Path) -> None:
    with (checkout / "app.py").open("a") as app:
        app.write("(out / 'validation-report.json').write_text('{}')\nraise SystemExit(1)\n")
    assert synthesized(checkout).routes


def test_a_folder_without_an_app_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match=r"no app\.py"):
        synthesized(tmp_path)


def test_a_missing_node_is_an_error_only_when_it_synthesizes(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.delenv("JSII_NODE", raising=False)
    with pytest.raises(LocalError, match="Node is missing"):
        synthesized(checkout)
    monkeypatch.undo()
    synthesized(checkout)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert synthesized(checkout).routes


@pytest.mark.parametrize(
    ("system", "machine", "way"),
    [
        ("Linux", "x86_64", "for linux-x64: run `npm ci`"),
        ("Linux", "aarch64", "for linux-arm64: run `npm install --no-save @dynoxide/linux-arm64@"),
        ("Darwin", "arm64", "for darwin-arm64: run `npm install --no-save @dynoxide/darwin-arm64@"),
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


def test_the_engine_that_the_hint_names_is_the_one_that_is_locked() -> None:
    listed = json.loads((ROOT / "package.json").read_text())["optionalDependencies"]
    assert listed == {f"@dynoxide/{LOCKED}": VERSION}


def test_a_machine_that_cannot_run_functions_is_told_so_in_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["local"])
    monkeypatch.setattr(runtime, "find_spec", lambda _: None)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert local_main() == 1
    said = capsys.readouterr().err
    assert said.startswith("tally: functions run on Linux only")
    assert said.count("\n") == 1
