"""The end of a server."""

from __future__ import annotations

import asyncio
import socket


async def stop_listening(listener: socket.socket) -> None:
    """Accept no connection any more, and let those be made that were just accepted. Close the server only then.

    CPython 3.11 leaves the socket of such a connection open: a closed server refuses it too late.
    """
    asyncio.get_running_loop().remove_reader(listener)
    for _ in range(2):
        await asyncio.sleep(0)
