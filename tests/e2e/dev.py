"""Starts `make dev` as a process and calls it over real HTTP."""

from __future__ import annotations

import http.client
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import boto3

from bench.running import Dev as Process
from bench.running import bare_environment
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

ROOT = Path(__file__).resolve().parent.parent.parent
# The functions for likes and plays of callers without a token.
LIKES_FUNCTION, PLAYS_FUNCTION = "children_open", "increments_open"
KEY = "e2e-0123456789-0123456789"  # an idempotency key. A test that needs several keys appends to it


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    raw: bytes

    @property
    def body(self) -> Any:
        return json.loads(self.raw)


class Dev(Process):
    """One `make dev` of the app in the folder `app`. Without `arguments` it runs on a free port.

    `warnings`: what Python does with a warning (its option -W). By default it raises the warning as an error.
    `environment`: variables beside those of this process, except AWS_ and TALLY_ variables.
    """

    def __init__(
        self, data: Path, *arguments: str, warnings: str = "error", app: Path = ROOT, **environment: str
    ) -> None:
        options = arguments or ("--port", "0")
        super().__init__(app, data, *options, python=("-W", warnings), environment=bare_environment(**environment))

    def wait_for_end(self) -> int:
        """Waits until the process ends without a signal of the test. Returns the exit status."""
        return self.process.wait(PATIENCE_S)

    def descendants(self) -> list[int]:
        """Returns the child processes of `make dev`, and the children of these processes."""
        return descendants(self.process.pid)

    def workers(self, function: str) -> list[int]:
        """Returns the workers that run a function, or ran the function last: forks of the zygote that write to its log.
        A worker may run each function."""
        workers = [pid for pid in self.descendants() if "zygote" in command_line(pid)]
        return [pid for pid in workers if os.path.realpath(f"/proc/{pid}/fd/1").endswith(f"/logs/{function}.log")]

    def call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        raw: bytes | None = None,
        token: str | None = None,
        **headers: str,
    ) -> Answer:
        """Sends one request. Keywords are headers, with `_` for `-`. `body` is sent as JSON, `raw` unchanged."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if body is not None:
            raw = json.dumps(body).encode()
            sent.setdefault("content-type", "application/json")
        if token is not None:
            sent["authorization"] = f"Bearer {token}"
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            connection.request(method, path, raw, sent)
            response = connection.getresponse()
            received = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, received, response.read())
        finally:
            connection.close()

    def play(self, video: str, key: str) -> Answer:
        """Plays a video."""
        return self.call("POST", f"/videos/{video}/plays", idempotency_key=key)

    def plays(self, video: str) -> int:
        """Returns the plays of a video."""
        return int(self.call("GET", f"/videos/{video}/plays").body["value"])

    def number(self, counter: str, id_: str) -> int:
        """Returns the number of an id."""
        return int(self.call("GET", f"/counters/{counter}/{id_}").body["value"])

    def visit(self, url: str, key: str) -> Answer:
        """Sends a visit as the browser of a person does."""
        return self.call("POST", "/visits", {"url": url, "key": key}, user_agent="Mozilla/5.0 Firefox/140.0")

    def visits(self, url: str) -> tuple[int, int, int | None]:
        """Returns the visits of a page by people and by programs, and their `as_of`."""
        body = self.call("GET", f"/visits?url={quote(url, safe='')}").body
        return body["value"], body["bots"], body["as_of"]

    def like(self, post: str, token: str) -> int:
        """Likes a post. Returns the status."""
        return self.call("PUT", f"/posts/{post}/like", token=token).status

    def likes(self, post: str) -> int:
        """Returns the likes of a post."""
        return int(self.call("GET", f"/posts/{post}").body["likes"])

    def hearts(self, page: str) -> list[str | None]:
        """Returns the user of each like of a page; None: an anonymous like."""
        listed = self.call("GET", f"/counters/hearts/{page}/children", token=self.token("reader", scope="tally/read"))
        return [child.get("child") for child in listed.body["children"]]

    def token(self, sub: str = "alice", **claims: Any) -> str:
        """Returns an access token for a user or service. `claims`: more claims of the token, such as `scope`."""
        answer = self.call("POST", "/dev/token", {"sub": sub, **claims})
        assert answer.status == 200, answer
        return str(answer.body["access_token"])


def copy_app(folder: Path) -> Path:
    """Copies the app into `folder`, and returns the copy. A test may change the `counters.py` of the copy."""
    app = folder / "app"
    app.mkdir()
    for name in ("lambdas", "stacks", "tally"):
        shutil.copytree(ROOT / name, app / name, ignore=shutil.ignore_patterns("__pycache__"))
    for file in filter(Path.is_file, ROOT.iterdir()):
        shutil.copy(file, app)
    (app / "node_modules").symlink_to(ROOT / "node_modules")
    return app


def descendants(pid: int) -> list[int]:
    """Returns the child processes, and the children of these processes."""
    found: list[int] = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = stat.read_text().rpartition(")")[2].split()[1]
        except OSError:  # the process has just ended
            continue
        if int(parent) == pid:
            child = int(stat.parent.name)
            found += [child, *descendants(child)]
    return found


def command_line(pid: int) -> str:
    """Returns the command line of a process; empty if the process has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def running(pids: list[int]) -> list[int]:
    """Returns the processes that still run. A zombie has an empty command line, and does not run."""
    return [pid for pid in pids if command_line(pid)]


def client(endpoint: str) -> DynamoDBClient:
    """Returns a boto3 client of an engine."""
    return boto3.client(
        "dynamodb", endpoint_url=endpoint, region_name="eu-west-1", aws_access_key_id="local",
        aws_secret_access_key="local",
    )  # fmt: skip
