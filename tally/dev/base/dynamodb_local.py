"""AWS's DynamoDB Local, a Java program, and the choice between it and the embedded engine.

Maven fetches the version that pom.xml pins, once, into the user's cache. Run as a program, this module only fetches.
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
from .options import DYNAMODB_LOCAL

POM = Path(__file__).with_name("pom.xml")
FILE = "shared-local-instance.db"  # DynamoDB Local's name of its file
JAVA_MIN = 17
_JAVA_CLASS = "com.amazonaws.services.dynamodbv2.local.main.ServerRunner"
_FAST_START_OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx512m")  # Java starts in 1 s, not in 2


def choose_engine(data: Path, name: str) -> engine.Engine:
    """Returns the engine that `name` (ENGINE) chooses, with its data in a folder. The default is the embedded engine,
    or DynamoDB Local if the embedded engine has no package for this platform."""
    is_embedded = not name and (engine.find_installed() or engine.has_package())
    return engine.Engine(data / "engine.db") if is_embedded else DynamoDBLocal(data / FILE)


class DynamoDBLocal(engine.Engine):
    """A process of DynamoDB Local, which listens on every interface, and has no option to change that."""

    warnings = ("DynamoDB Local listens on every interface of this machine, without a password",)

    def command(self) -> list[str]:
        """Returns the command. With its options the engine sends AWS no reports, and all credentials share tables."""
        storage = ["-sharedDb", "-dbPath", str(self.db_path.parent)] if self.db_path else ["-inMemory"]
        program = [_java(), *_FAST_START_OPTIONS, "-cp", f"{jars()}/*", _JAVA_CLASS]
        return [*program, "-disableTelemetry", "-port", str(self.port), *storage]

    def start(self) -> engine.Engine:
        """Start the process. With a write-ahead log in its file, a write waits for the disk once, not four times."""
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
            _check_java()  # the files of DynamoDB Local may be in the cache although Java is missing
            raise


def jars() -> Path:
    """Returns the folder of DynamoDB Local. If the folder does not exist, fetches the files. Raises LocalError."""
    pinned = re.search(r"DynamoDBLocal</artifactId>\s*<version>(.*?)<", POM.read_text())
    assert pinned, POM
    folder = engine_package.cache_folder() / f"{DYNAMODB_LOCAL}-{pinned[1]}"
    if folder.is_dir():
        return folder
    _check_java()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        print(f"tally: fetching DynamoDB Local by Maven into {folder} (50 MB, once)", flush=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as fresh:
            # Maven checks each file against the checksum in its repository, and fails if there is no checksum.
            command = ["mvn", "--quiet", "--batch-mode", "--strict-checksums", f"--file={POM}"]
            command += ["dependency:copy-dependencies", f"-DoutputDirectory={fresh}/jars"]
            run = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
            if run.returncode:
                why = re.search(r"\[ERROR\] (.*)", run.stdout + run.stderr)
                raise LocalError(f"Maven cannot fetch DynamoDB Local: {why[1] if why else run.returncode}")
            with contextlib.suppress(FileExistsError):  # another process was faster
                Path(fresh, "jars").rename(folder)
    except FileNotFoundError:
        raise LocalError("DynamoDB Local is fetched by Maven, and there is no mvn: install Maven") from None
    except OSError as error:
        text = f"DynamoDB Local cannot be kept in {folder.parent}: {error.strerror}; set XDG_CACHE_HOME"
        raise LocalError(text) from None
    return folder


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    return f"{home}/bin/java" if home else "java"


def _check_java() -> None:
    """Raise LocalError if no Java can run DynamoDB Local. Ask Java for its version: a Mac's `java` may be a stub."""
    try:
        output = subprocess.run([_java(), "-version"], capture_output=True, text=True).stderr
    except OSError:
        output = ""
    version = re.search(r'version "(\d+)', output)
    if not version or int(version[1]) < JAVA_MIN:
        java = f"{_java()} is Java {version[1]}" if version else f"there is no {_java()}"
        advice = "install a newer Java, or set JAVA_HOME to its folder"
        raise LocalError(f"DynamoDB Local needs Java {JAVA_MIN} or newer, and {java}: {advice}")


if __name__ == "__main__":
    try:
        jars()
    except LocalError as error:
        sys.exit(f"tally: {error}")
