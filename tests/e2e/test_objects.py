"""Local objects, through boto3 as functions use it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from dev.base.objects import ObjectError, Objects
from tests.e2e.dev import Dev


@pytest.fixture
def where(dev: Dev) -> dict[str, Any]:
    return dict(dev.call("GET", "/dev/stack").body)


@pytest.fixture
def s3(where: dict[str, Any]) -> Any:
    client = boto3.client(
        "s3",
        endpoint_url=where["s3"],
        region_name="eu-west-1",
        aws_access_key_id="local",
        aws_secret_access_key="local",
        config=Config(proxies={}, retries={"total_max_attempts": 1}),
    )
    yield client
    client.close()


def code(error: pytest.ExceptionInfo[ClientError]) -> str:
    return str(error.value.response["Error"]["Code"])


def test_an_object_is_put_read_listed_and_deleted(s3: Any, where: dict[str, Any]) -> None:
    bucket, key = where["bucket"], "rollup/shardId-1/a b+ü&<x>.json"
    put = s3.put_object(Bucket=bucket, Key=key, Body=b'{"a": 1}', ContentType="application/json")
    found = s3.get_object(Bucket=bucket, Key=key)
    assert (found["Body"].read(), found["ContentType"], found["ETag"]) == (b'{"a": 1}', "application/json", put["ETag"])
    s3.put_object(Bucket=bucket, Key="rollup/shardId-2/b.json", Body=b"")
    listed = s3.list_objects_v2(Bucket=bucket, Prefix="rollup/shardId-")["Contents"]
    assert [(one["Key"], one["Size"]) for one in listed] == [(key, 8), ("rollup/shardId-2/b.json", 0)]
    for name in (key, "rollup/shardId-2/b.json", "never/there"):
        s3.delete_object(Bucket=bucket, Key=name)
    with pytest.raises(ClientError) as error:
        s3.get_object(Bucket=bucket, Key=key)
    assert code(error) == "NoSuchKey"


def test_unknown_calls_are_errors_of_s3(s3: Any, where: dict[str, Any]) -> None:
    with pytest.raises(ClientError) as error:
        s3.put_object(Bucket="another", Key="a", Body=b"")
    assert code(error) == "NoSuchBucket"
    with pytest.raises(ClientError) as error:
        s3.create_multipart_upload(Bucket=where["bucket"], Key="a")
    assert code(error) == "NotImplemented"
    with pytest.raises(ClientError) as error:
        s3.put_object(Bucket=where["bucket"], Key="a" * 1025, Body=b"")
    assert code(error) == "KeyTooLongError"


@pytest.mark.parametrize("bucket", ["..", ".", "a/b", "", "../objects"])
def test_no_name_leads_out_of_the_folder(tmp_path: Path, bucket: str) -> None:
    with pytest.raises(ObjectError):
        Objects(tmp_path / "objects", (bucket,)).put(bucket, "x", b"", "a/b")
    stored = Objects(tmp_path / "objects", ("abc",)).put("abc", "../../x", b"1", "a/b")
    assert stored.key == "../../x"
    assert [path.parent for path in tmp_path.rglob("*.object")] == [tmp_path / "objects/abc"]
