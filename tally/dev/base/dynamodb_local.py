"""AWS's DynamoDB Local, a Java program, and the choice between it and the embedded engine.

Maven fetches what pom.xml pins, once, into the user's cache. Run as a program, this module does that and no more.
"""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

from . import engine, engine_package
from .errors import LocalError
from .options import ENGINES

POM = Path(__file__).with_name("pom.xml")
FILE = "shared-local-instance.db"  # DynamoDB Local calls its file so
JAVA_MIN = 17
_MAIN = "com.amazonaws.services.dynamodbv2.local.main.ServerRunner"
_FAST_START_OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx512m")  # half the time to start: one second


def choose_engine(data: Path, name: str) -> engine.Engine:
    """The engine that `name` chooses (ENGINE), with its data in a folder. By default DynamoDB Local only where the
    embedded engine has no package."""
    embedded = not name and (engine.find_installed() or engine.has_package())
    return engine.Engine(data / "engine.db") if embedded else DynamoDBLocal(data / FILE)


class DynamoDBLocal(engine.Engine):
    """One process of it. It listens on every interface: it has no option for that."""

    warnings = ("DynamoDB Local listens on every interface of this machine, without a password",)

    def command(self) -> list[str]:
        """It reports nothing to AWS (`-disableTelemetry`), and gives all credentials the same tables (`-sharedDb`)."""
        of_java = [
            _java(),
            *_FAST_START_OPTIONS,
            "-cp",
            f"{jars()}/*",
            _MAIN,
            "-disableTelemetry",
            "-port",
            str(self.port),
        ]
        where = ["-sharedDb", "-dbPath", str(self.db_path.parent)] if self.db_path else ["-inMemory"]
        return [*of_java, *where]

    def start(self) -> engine.Engine:
        """Start it. With a write-ahead log, which the file keeps, a write waits for the disk once, not four times."""
        if self.db_path:
            self.db_path.parent.mkdir(parents=True, exist_ok=True)
            try:
                with closing(sqlite3.connect(self.db_path)) as database:
                    database.execute("PRAGMA journal_mode = WAL")
            except sqlite3.Error as error:
                raise LocalError(f"{self.db_path} is not a file of the engine: {error}") from None
        try:
            return super().start()
        except LocalError:
            _check_java()  # its files may be there from before
            raise


def jars() -> Path:
    """The folder of its files. Fetches them if they are not there. Raises LocalError."""
    pinned = re.search(r"DynamoDBLocal</artifactId>\s*<version>(.*?)<", POM.read_text())
    assert pinned, POM
    folder = engine_package.cache_folder() / f"{ENGINES[1]}-{pinned[1]}"
    if folder.is_dir():
        return folder
    _check_java()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        print(f"tally: fetching DynamoDB Local by Maven into {folder} (50 MB, once)", flush=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as fresh:
            # Maven checks each file against the checksum that its repository gives, and fails without one.
            command = ["mvn", "--quiet", "--batch-mode", "--strict-checksums", f"--file={POM}"]
            command += ["dependency:copy-dependencies", f"-DoutputDirectory={fresh}/jars"]
            run = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
            if run.returncode:
                why = re.search(r"\[ERROR\] (.*)", run.stdout + run.stderr)
                raise LocalError(f"Maven does not fetch DynamoDB Local: {why[1] if why else run.returncode}")
            with contextlib.suppress(FileExistsError):  # another process was faster
                Path(fresh, "jars").rename(folder)
    except FileNotFoundError:
        raise LocalError("DynamoDB Local is fetched by Maven, and there is no mvn: install Maven") from None
    except OSError as error:
        raise LocalError(
            f"DynamoDB Local cannot be kept in {folder.parent}: {error.strerror}; set XDG_CACHE_HOME"
        ) from None
    return folder


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    return f"{home}/bin/java" if home else "java"


def _check_java() -> None:
    """Raise LocalError if there is no Java that DynamoDB Local runs on. A Mac has a `java` that is none."""
    try:
        said = subprocess.run([_java(), "-version"], capture_output=True, text=True).stderr
    except OSError:
        said = ""
    found = re.search(r'version "(\d+)', said)
    if not found or int(found[1]) < JAVA_MIN:
        has = f"{_java()} is Java {found[1]}" if found else f"there is no {_java()}"
        raise LocalError(
            f"DynamoDB Local needs Java {JAVA_MIN} or newer, and {has}: install one, or set JAVA_HOME to it"
        )


if __name__ == "__main__":
    try:
        jars()
    except LocalError as error:
        sys.exit(f"tally: {error}")
