"""Runs MiniStack, an emulator of AWS, in a process with a virtual environment of its own."""

from __future__ import annotations

import os
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config

from tally.dev.base.engine import free_port
from tally.dev.stack.zygote import die_with_parent
from tests.environments import make_environment
from tests.patience import PATIENCE_S

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
ACCOUNT, REGION = "123456789012", "eu-west-1"


class Emulator:
    """A running emulator, empty at first, with its state in memory and its files in `home`."""

    def __init__(self, home: Path) -> None:
        self.port = free_port()
        self.url = f"http://localhost:{self.port}"
        self.log = home / "emulator.log"
        python, temporary = make_environment(REQUIREMENTS), home / "temporary"
        temporary.mkdir()
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "TALLY_"))}
        settings = {
            "GATEWAY_PORT": str(self.port),
            "BIND_HOST": "127.0.0.1",
            "MINISTACK_ACCOUNT_ID": ACCOUNT,
            "MINISTACK_REGION": REGION,
            "TMPDIR": str(temporary),
            "STATE_DIR": str(home / "state"),
            "S3_DATA_DIR": str(home / "s3"),
        }
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                [str(python), "-m", "ministack"], cwd=home, env=inherited | settings, stdin=subprocess.DEVNULL,
                stdout=output, stderr=subprocess.STDOUT, preexec_fn=die_with_parent, start_new_session=True,
            )  # fmt: skip
        try:
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise

    def _wait_until_ready(self) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            assert self.process.poll() is None, self.log.read_text()
            try:
                urllib.request.urlopen(f"{self.url}/_ministack/health", timeout=PATIENCE_S).close()
                return
            except (OSError, urllib.error.URLError):
                assert time.monotonic() < deadline_s, self.log.read_text()
                time.sleep(0.05)

    def stop(self) -> None:
        """Ends the emulator and the functions that it runs."""
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def client(self, service: str) -> Any:
        """Returns a boto3 client, which retries if no answer comes, as Lambda's event source mappings do.

        The client also retries after a 502 or 503, which the emulator answers on a busy machine.
        """
        timeout_s = PATIENCE_S / 12 if service == "lambda" else PATIENCE_S  # for each of 12 attempts
        return boto3.client(
            service,  # type: ignore[call-overload]
            endpoint_url=self.url,
            region_name=REGION,
            aws_access_key_id=ACCOUNT,  # MiniStack takes an access key of 12 digits as the account
            aws_secret_access_key="local",
            config=Config(
                retries={"mode": "standard", "total_max_attempts": 12},
                read_timeout=timeout_s,
                max_pool_connections=20,
            ),
        )

    def environment(self, home: Path) -> dict[str, str]:
        """Returns the environment of commands that use the emulator, not AWS. `home`: the folder HOME."""
        return {
            **os.environ,
            "AWS_ENDPOINT_URL": self.url,
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_ACCESS_KEY_ID": ACCOUNT,
            "AWS_SECRET_ACCESS_KEY": "local",
            "AWS_MAX_ATTEMPTS": "12",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CDK_DISABLE_CLI_TELEMETRY": "true",
            "JSII_SILENCE_WARNING_END_OF_LIFE_NODE_VERSION": "20",
            "NODE_NO_WARNINGS": "1",
            "HOME": str(home),
        }
