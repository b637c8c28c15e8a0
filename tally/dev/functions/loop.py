"""The native part of AWS's runtime client, in Python, for machines that AWS makes none for, such as a Mac.

Run as a program with the name of a handler, this file is `python -m awslambdaric` with these four functions in place of
the native ones. So the handler, its context, its errors and its log come from AWS's own code, here and on Linux.
It runs by its path: the process of a function imports nothing else of `dev`.
"""

from __future__ import annotations

import http.client
import os
import runpy
import sys

_API = "/2018-06-01/runtime/invocation"


def initialize_client(user_agent: str) -> None:
    """Nothing: each call makes its own connection, which stays on this machine."""


def next() -> tuple[bytes, dict[str, str | int]]:
    """Wait for an invocation: its event, and its headers. Raises RuntimeError."""
    event, found = _call("GET", "next")
    return event, {**found, "Lambda-Runtime-Deadline-Ms": int(found["Lambda-Runtime-Deadline-Ms"])}


def post_invocation_result(invoke_id: str, result: bytes, content_type: str, invocation_id: str | None) -> None:
    """Answer with the handler's result. Raises RuntimeError if it is not taken."""
    _call("POST", f"{invoke_id}/response", result, content_type)


def post_error(invoke_id: str, error: str, xray_fault: str, invocation_id: str | None) -> None:
    """Answer with the handler's error, a JSON document. Raises RuntimeError if it is not taken."""
    _call("POST", f"{invoke_id}/error", error.encode(), "application/json")


def _call(method: str, path: str, body: bytes | None = None, content_type: str = "") -> tuple[bytes, dict[str, str]]:
    connection = http.client.HTTPConnection(os.environ["AWS_LAMBDA_RUNTIME_API"])
    try:  # without a time limit: the next event comes when somebody calls
        connection.request(method, f"{_API}/{path}", body, {"Content-Type": content_type} if content_type else {})
        answer = connection.getresponse()
        content = answer.read()
    except (OSError, http.client.HTTPException) as error:
        raise RuntimeError(f"no answer to {method} {path}: {error}") from None
    finally:
        connection.close()
    if not 200 <= answer.status < 300:
        raise RuntimeError(f"{method} {path} was answered {answer.status}")
    return content, dict(answer.getheaders())


if __name__ == "__main__":
    sys.path[0] = os.getcwd()  # as with `-m`: the folder of the handlers, and not this file's
    sys.modules["runtime_client"] = sys.modules[__name__]
    runpy.run_module("awslambdaric", run_name="__main__")
