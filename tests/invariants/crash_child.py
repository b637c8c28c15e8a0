"""The environments of the plays function: each line on stdin forks one, which serves until it is killed.

    python crash_child.py <path of a Unix socket>

A worker connects to the socket, sends its process id on a line, and then answers events, one JSON line each. Forking
from a process that has loaded everything takes milliseconds, as a restored snapshot does.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys


class Context:
    """As much of a Lambda context as the handler looks at."""

    aws_request_id = "11111111-2222-3333-4444-555555555555"

    def get_remaining_time_in_millis(self) -> int:
        return 10_000


def serve(path: str) -> None:
    """Be one worker."""
    import serve as functions

    handler = functions.increments_open

    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        connection.sendall(b"%d\n" % os.getpid())
        for line in connection.makefile("rb"):
            connection.sendall(json.dumps(handler(json.loads(line), Context())).encode() + b"\n")


def main(path: str) -> None:
    """Fork a worker for each line of stdin, until its end."""

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # killed workers leave no zombies
    for _ in sys.stdin.buffer:
        if os.fork() == 0:
            serve(path)
            os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
