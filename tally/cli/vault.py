"""The copies of the tables in a vault of AWS Backup, and the jobs that restore them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import boto3

from tally.drift.checks import format_time

from .connection import PATIENT
from .terminal import CommandError

TABLES = ("counts", "receipts", "ledger")
SAME_DAY_S = 12 * 3600  # copies of one day start within an hour. Copies of two days start 23 hours apart or more
_COPIED_TABLE = re.compile(r"(arn:.+:table/.+?(?:-[0-9]{8}T[0-9]{6})?)-(counts|receipts|ledger)")
_RESTORED_SUFFIX = re.compile(r"-[0-9]{8}T[0-9]{6}$")  # the time that a restore adds
_READY = ("COMPLETED", "AVAILABLE")  # statuses of a copy
_ROLE = "service-role/AWSBackupDefaultServiceRole"  # AWS Backup makes it
_FAILED, _AT_WORK = ("ABORTED", "FAILED"), ("PENDING", "RUNNING")  # statuses of a job


class Copy(NamedTuple):
    """A copy of one table. `made_s`: when AWS Backup started the copy, in epoch seconds; the data may be newer."""

    arn: str
    made_s: float


class Vault:
    """A vault, in the region and account that its ARN names."""

    def __init__(self, arn: str) -> None:
        _, self._partition, _, self.region, self._account, _, self.name = arn.split(":")
        self._client: Any = boto3.client("backup", config=PATIENT, region_name=self.region)

    def copies(self, stack: str, to_s: int) -> tuple[str, Mapping[str, Copy]]:
        """Returns the prefix of the tables' names, and the newest copy of each table up to a time.

        `stack`: the name of the stack; if two stacks have this name, the ARN of a stack's counts table, less its end
        `-counts`. If a copy is missing, or if the copies are not of one day, raises CommandError.
        """
        by_prefix: dict[str, dict[str, Copy]] = {}  # by the ARN of the tables, less -counts, -receipts or -ledger
        paginator = self._client.get_paginator("list_recovery_points_by_backup_vault")
        pages = paginator.paginate(BackupVaultName=self.name, ByResourceType="DynamoDB")
        for point in (point for page in pages for point in page["RecoveryPoints"] if point["Status"] in _READY):
            match = _COPIED_TABLE.fullmatch(point["ResourceArn"])
            if match is None:
                continue
            copy = Copy(point["RecoveryPointArn"], point["CreationDate"].timestamp())
            prefix, table, original = match[1], match[2], _original_prefix(match[1])
            if stack in (original, original.rpartition("/")[2]) and int(copy.made_s) <= to_s:
                of_stack = by_prefix.setdefault(prefix, {})
                of_stack[table] = max(of_stack.get(table, copy), copy, key=lambda one: one.made_s)
        complete = {prefix: copies for prefix, copies in by_prefix.items() if len(copies) == len(TABLES)}
        if not complete:
            raise CommandError(f"the vault {self.name} has no copies of {stack}'s three tables by {format_time(to_s)}")
        stacks = sorted({_original_prefix(prefix) for prefix in complete})
        if len(stacks) > 1:
            raise CommandError(f"the vault {self.name} has copies of {' and '.join(stacks)}: give one as --stack")
        # After a restore, the vault has copies of two sets of tables. The stack uses the set with the newer copies.
        newest = max(complete, key=lambda prefix: min(copy.made_s for copy in complete[prefix].values()))
        copies = complete[newest]
        by_time = sorted((int(copy.made_s), table) for table, copy in copies.items())
        if by_time[-1][0] - by_time[0][0] > SAME_DAY_S:
            times = ", ".join(f"{table} {format_time(made_s)}" for made_s, table in by_time)
            raise CommandError(f"the newest copies are not of one day ({times}): choose an earlier time")
        return _original_prefix(newest).rpartition("/")[2], copies

    def begin_restore(self, copy: Copy, target: str, *, exists: bool) -> str:
        """Starts the job that restores a copy, and returns its id. If `target` `exists`, returns the id of the job that
        makes or made this table; if there is no such job, raises CommandError."""
        pages = self._client.get_paginator("list_restore_jobs").paginate(ByResourceType="DynamoDB")
        jobs = [job for page in pages for job in page["RestoreJobs"] if job["RecoveryPointArn"] == copy.arn]
        if exists:
            for job in jobs:
                has_made_target = str(job.get("CreatedResourceArn", "")).endswith(f":table/{target}")
                if job["Status"] in _AT_WORK or has_made_target:
                    return str(job["RestoreJobId"])
            raise CommandError(f"the table {target} exists, and this command did not make it: choose another time")
        failed = sum(job["Status"] in _FAILED for job in jobs)
        # If AWS Backup knows the token, it returns the token's job. Each failed job leads to a new token, so a repeated
        # call finds a job that runs, and starts a new job after a failure.
        token = hashlib.sha256(f"{copy.arn} {target} {failed}".encode()).hexdigest()
        job = self._client.start_restore_job(
            RecoveryPointArn=copy.arn,
            # The template uses DynamoDB's own key, too.
            Metadata={"targetTableName": target, "encryptionType": "Default", "kmsMasterKeyArn": "Not Applicable"},
            IamRoleArn=f"arn:{self._partition}:iam::{self._account}:role/{_ROLE}",
            IdempotencyToken=token,
            ResourceType="DynamoDB",
        )
        return str(job["RestoreJobId"])

    def check(self, jobs: Iterable[str]) -> None:
        """If a job has failed, raises CommandError with the message of AWS Backup."""
        for job in jobs:
            described = self._client.describe_restore_job(RestoreJobId=job)
            if described["Status"] in _FAILED:
                why = described.get("StatusMessage") or described["Status"]
                raise CommandError(f"AWS Backup did not restore a table: {why}")


def _original_prefix(prefix: str) -> str:
    """Returns the prefix of a stack's tables without the time that a restore adds."""
    return _RESTORED_SUFFIX.sub("", prefix)
