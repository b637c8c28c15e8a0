"""A model of AWS Backup: a vault with copies, and jobs that make tables from copies.

botocore checks each request against AWS's own model of the service, and nothing is sent.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import boto3

from tally.dynamo.keys import Item

ACCOUNT, REGION = "210987654321", "us-west-2"
NAME = "tally-copies"
VAULT = f"arn:aws:backup:{REGION}:{ACCOUNT}:backup-vault:{NAME}"
SOURCE = "arn:aws:dynamodb:eu-west-1:123456789012:table/Tally-prod"
TABLES = ("counts", "receipts", "ledger")


def make_restored_table(client: Any, name: str, items: list[Item]) -> None:
    """Make a table from a copy as AWS Backup does: with the items, and without the settings."""
    names = [key for key in ("PK", "SK", "id") if key in items[0]]
    client.create_table(
        TableName=name, BillingMode="PAY_PER_REQUEST",
        KeySchema=[
            {"AttributeName": key, "KeyType": kind} for key, kind in zip(names, ("HASH", "RANGE"), strict=False)
        ],
        AttributeDefinitions=[{"AttributeName": key, "AttributeType": "S"} for key in names],
    )  # fmt: skip
    for item in items:
        client.put_item(TableName=name, Item=item)


class Vault:
    """The vault. `restore` makes a table from a copy's ARN and the table's name."""

    def __init__(self, restore: Callable[[str, str], object], region: str = REGION) -> None:
        self.region, self.arn = region, VAULT.replace(REGION, region)
        self.copies: list[dict[str, Any]] = []
        self.jobs: dict[str, dict[str, Any]] = {}
        self.start_requests: list[dict[str, Any]] = []
        """The request of each job that has started."""
        self.failure_message = ""
        """The message with which jobs fail; empty: jobs succeed."""
        self._restore = restore

    def copy(self, made_s: float, *tables: str, source: str = SOURCE, status: str = "COMPLETED") -> None:
        """Put copies of these tables into the vault; of all three, if no table is named. `source`: how ARNs begin."""
        for table in tables or TABLES:
            number = len(self.copies)
            self.copies.append({
                "RecoveryPointArn": f"arn:aws:backup:{self.region}:{ACCOUNT}:recovery-point:{number}",
                "ResourceArn": f"{source}-{table}", "Status": status,
                "CreationDate": datetime.fromtimestamp(made_s, UTC),
            })  # fmt: skip

    def client(self, service: str, **options: Any) -> Any:
        """Replaces `boto3.client`."""
        assert (service, options["region_name"]) == ("backup", self.region)
        backup = boto3.client("backup", **options)
        backup.meta.events.register("before-call.backup", self._answer)
        return backup

    def _answer(self, model: Any, params: Any, **_: Any) -> tuple[Any, Any]:
        """Returns the response and the document that botocore takes for AWS's answer."""
        body = json.loads(params["body"]) if params["body"] else {}
        answers = {
            "ListRecoveryPointsByBackupVault": lambda: {"RecoveryPoints": self.copies},
            "ListRestoreJobs": lambda: {"RestoreJobs": list(self.jobs.values())},
            "DescribeRestoreJob": lambda: self.jobs[params["url_path"].rpartition("/")[2]],
            "StartRestoreJob": lambda: self._start(body),
        }
        if model.name == "ListRecoveryPointsByBackupVault":
            assert params["url_path"] == f"/backup-vaults/{NAME}/recovery-points/"
        return SimpleNamespace(status_code=200), answers[model.name]()

    def _start(self, request: Any) -> dict[str, Any]:
        """Start a job. A second request with the same token starts nothing."""
        for job in self.jobs.values():
            if job["token"] == request["IdempotencyToken"]:
                return {"RestoreJobId": job["RestoreJobId"]}
        self.start_requests.append(request)
        job = {"RestoreJobId": f"job{len(self.jobs)}", "RecoveryPointArn": request["RecoveryPointArn"]}
        job |= {"token": request["IdempotencyToken"], "Status": "RUNNING"}
        self.jobs[job["RestoreJobId"]] = job
        if self.failure_message:
            job |= {"Status": "FAILED", "StatusMessage": self.failure_message}
        else:
            target = request["Metadata"]["targetTableName"]
            self._restore(request["RecoveryPointArn"], target)
            arn = f"arn:aws:dynamodb:{self.region}:{ACCOUNT}:table/{target}"
            job |= {"Status": "COMPLETED", "CreatedResourceArn": arn}
        return job
