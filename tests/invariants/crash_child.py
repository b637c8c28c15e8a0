"""A process of a function that answers increments: one JSON event in, one answer out, until it is killed."""

from __future__ import annotations

import json
import os
from multiprocessing.connection import Connection

from tests.contexts import Context


def serve(connection: Connection, environment: dict[str, str]) -> None:
    """Answer each event that comes over the connection, and end with it."""
    os.environ.update(environment)
    import handlers as functions

    handler = functions.increments_open
    while True:
        try:
            event = json.loads(connection.recv_bytes())
        except EOFError:
            return
        connection.send_bytes(json.dumps(handler(event, Context())).encode())
