"""`make audit` against services of its own: an OSV and an npm registry that know of what they are told to."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from cli import audit

ADVISORY = "PYSEC-2026-1"
KNOWN_OF_NPM = {"id": 1, "url": "https://a.test/1", "title": "out of its folder", "vulnerable_versions": "*"}


class Service(ThreadingHTTPServer):
    """Answers what OSV and an npm registry answer. `vulnerable` names the packages that it knows something of."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Asked)
        self.vulnerable: set[str] = set()
        self.url = f"http://127.0.0.1:{self.server_port}"


class Asked(BaseHTTPRequestHandler):
    server: Service

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        vulnerable = self.server.vulnerable
        if self.path == "/v1/querybatch":
            queries = json.loads(body)["queries"]
            known = {"vulns": [{"id": ADVISORY, "modified": "2026-01-01T00:00:00Z"}]}
            self.answer({"results": [known if one["package"]["name"] in vulnerable else {} for one in queries]})
        else:  # the body is compressed, and names every package of the lock
            self.answer({"tar-fs": [KNOWN_OF_NPM | {"severity": "high"}]} if "tar-fs" in vulnerable else {})

    def do_GET(self) -> None:
        if self.path == f"/v1/vulns/{ADVISORY}":
            self.answer({"id": ADVISORY, "modified": "2026-01-01T00:00:00Z", "summary": "too long an answer"})
        else:  # npm looks for versions that are safe
            self.send_error(404)

    def answer(self, answer: dict[str, Any]) -> None:
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Service]:
    """It stands for both services, and one pin for the locks of Python."""
    made = Service()
    Thread(target=made.serve_forever, daemon=True).start()
    (tmp_path / "pins.txt").write_text("# made\nidna==3.20 \\\n    --hash=sha256:00\n")
    monkeypatch.setattr(audit, "LOCKS", (str(tmp_path / "pins.txt"),))
    monkeypatch.setenv("npm_config_registry", made.url)
    monkeypatch.setenv("npm_config_fetch_retries", "0")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    yield made
    made.shutdown()
    made.server_close()


def test_what_is_known_is_named_and_fails(service: Service, capsys: pytest.CaptureFixture[str]) -> None:
    service.vulnerable = {"idna", "tar-fs"}
    assert audit.main(["--service-url", service.url]) == 1
    said = capsys.readouterr().out
    assert "pins.txt: 1 packages, known vulnerabilities: 1\n" in said
    assert f"  idna 3.20: {ADVISORY}: too long an answer (fixed in no version yet) https://" in said
    assert "  tar-fs: out of its folder (*) https://a.test/1\n" in said


def test_nothing_known_is_said_with_the_number_of_packages(
    service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    assert audit.main(["--service-url", service.url]) == 0
    of_python, of_npm = capsys.readouterr().out.splitlines()
    assert of_python.endswith("pins.txt: 1 packages, known vulnerabilities: 0")
    locked = json.loads((audit.ROOT / "package-lock.json").read_text())["packages"]
    assert of_npm == f"package-lock.json: {len(locked) - 1} packages, known vulnerabilities: 0"


@pytest.mark.parametrize("offline", ["", "npm_config_offline", "UV_OFFLINE"])
def test_services_that_do_not_answer_are_a_line_each_and_never_none_known(
    service: Service, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, offline: str
) -> None:
    service.shutdown()
    service.server_close()
    if offline:
        monkeypatch.setenv(offline, "true")
    assert audit.main(["--service-url", service.url]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert [line[:20] for line in said.err.splitlines()] == ["tally: not audited: "] * 2
