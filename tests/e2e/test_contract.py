"""Tests the HTTP API and the Invoke API of `make dev`, with all its functions."""

from __future__ import annotations

import gzip
import json
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.e2e.dev import KEY, Dev
from tests.patience import PATIENCE_S, wait_for


def test_the_commands_that_make_dev_prints_work(dev: Dev) -> None:
    # The last command needs the AWS CLI.
    commands = dev.text.partition("Ctrl-C stops)")[2].partition("# the call of another Lambda")[0]
    assert commands.count("curl") == 8
    before_s = int(time.time())
    run = subprocess.run(["bash", "-e", "-c", commands], capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    for expected in (
        '"counted":true', '"visible":"now"', '"value":1', '"revision":0', '"present":true', '"likes":1',
        '"counted":true,"visible":"soon"',
    ):  # fmt: skip
        assert expected in run.stdout.replace(" ", ""), (expected, run.stdout)
    # A busy machine may take longer than the 2 s that the command waits. `as_of` is then before the visit.
    visits = json.loads(run.stdout[run.stdout.rindex("{") :])
    # Just after the start there is no watermark, and `as_of` is null.
    as_of = visits["as_of"]
    assert visits["value"] == 1 or as_of is None or as_of <= int(time.time()) - 2, visits
    assert as_of is None or before_s - PATIENCE_S <= as_of <= time.time()
    wait_for(lambda: dev.visits("https://example.com/a")[0] == 1)


def test_plays_of_many_callers_at_once_are_all_counted(dev: Dev) -> None:
    with ThreadPoolExecutor(16) as callers:
        played = callers.map(lambda n: dev.play("many", f"{KEY}-{n // 2}"), range(64))
        assert {answer.status for answer in played} == {200}  # 32 plays, each of them twice
    assert dev.plays("many") == 32


def test_a_body_that_is_not_text_reaches_the_function_in_base64(dev: Dev) -> None:
    body = json.dumps({"url": "https://example.com/b64", "key": KEY}).encode()
    answer = dev.call("POST", "/visits", raw=body, content_type="application/json", content_encoding="identity")
    assert answer.status == 202
    assert dev.call("POST", "/visits", raw=body, content_type="application/octet-stream").status == 415
    for raw in (gzip.compress(body), b"no gzip"):
        packed = dev.call("POST", "/visits", raw=raw, content_type="application/json", content_encoding="gzip")
        assert (packed.status, packed.body["title"]) == (415, "The content type is not supported")


def test_a_body_over_a_limit_gets_413_from_the_function_or_the_gateway(dev: Dev) -> None:
    # The function accepts less than 17,000 bytes, API Gateway 10 MB, and Lambda an event of 6 MB.
    by_function = dev.call("POST", "/visits", raw=b'"' + b"x" * 17_000 + b'"', content_type="application/json")
    assert by_function.status == 413
    assert by_function.headers["content-type"] == "application/problem+json"
    by_gateway = dev.call("POST", "/visits", raw=b"x" * (10 * 1024 * 1024 + 1), content_type="text/plain")
    assert (by_gateway.status, by_gateway.body) == (413, {"message": "Request Entity Too Large"})
    for_lambda = dev.call("POST", "/visits", raw=b"x" * (6 * 1024 * 1024), content_type="text/plain")
    assert (for_lambda.status, for_lambda.body) == (413, {"message": "Request Entity Too Large"})


@pytest.mark.parametrize("path", ["/videos/%FF/plays", "/videos/%23/plays", "/videos/50%25/plays", "/visits?url=%FF"])
def test_a_path_that_does_not_decode_to_an_id_gets_400(dev: Dev, path: str) -> None:
    assert dev.call("GET", path).status == 400
