"""The folder of the functions' code: links to the sources, and a copy of `counters.py`.

A person may write `counters.py` while the functions run. So each version has a folder of its own. If the zygote dies,
a new zygote loads the last version that worked.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tally.paths import LAMBDAS, PACKAGE, PACKAGES

from ..base.options import COUNTERS
from . import zygote

Spawned = tuple["subprocess.Popen[bytes]", socket.socket]


def write_folder(counters: bytes, folder: Path) -> Path:
    """Write the folder, in place of the folder of an earlier start, and return its path."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    packages = PACKAGES.iterdir() if PACKAGES.is_dir() else ()
    for path in (*packages, *LAMBDAS.glob("*.py"), PACKAGE):
        if path.name != COUNTERS:
            (folder / path.name).symlink_to(path.resolve())
    (folder / COUNTERS).write_bytes(counters)
    return folder


def spawn(folder: Path, log: Path, variables: Mapping[str, str], surroundings: Mapping[str, Any]) -> Spawned:
    """Start a zygote, which imports the code while this process continues. The zygote gets only these
    variables. With the terminal's variables, code could run on this machine and fail in Lambda."""
    own_end, zygote_end = socket.socketpair()
    with zygote_end, log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, zygote.__file__, str(zygote_end.fileno())],
            cwd=folder,
            env={**variables, "LAMBDA_TASK_ROOT": str(folder)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=[zygote_end.fileno()],
            preexec_fn=zygote.die_with_parent,
            start_new_session=True,  # Ctrl-C reaches this process, which ends the child
        )
    own_end.sendall(json.dumps(surroundings).encode() + b"\n")
    return process, own_end


def variables(name: str, memory_mb: int) -> dict[str, str]:
    """Returns the variables that Lambda sets for one function."""
    return {
        "_HANDLER": f"handlers.{name}",
        "AWS_LAMBDA_FUNCTION_NAME": name,
        "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": str(memory_mb),
        "AWS_LAMBDA_LOG_GROUP_NAME": f"/aws/lambda/{name}",
        "AWS_LAMBDA_LOG_STREAM_NAME": "local",
    }
