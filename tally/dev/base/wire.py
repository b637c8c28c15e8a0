"""Calls DynamoDB's JSON protocol without boto3, because stream records must keep the form that Lambda passes on."""

from __future__ import annotations

import json
from typing import Any

import aiohttp
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from .account import REGION

CALL_S_MAX = 10.0  # a local engine answers in milliseconds
NO_ANSWER = "NoAnswer"
_TARGETS = {"dynamodb": "DynamoDB_20120810", "streams": "DynamoDBStreams_20120810"}


class WireError(Exception):
    """An error of the engine. `kind`: DynamoDB's name of the error without its namespace, or NO_ANSWER."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}" if message else kind)
        self.kind = kind


class Wire:
    """Calls one engine; an asynchronous context manager. Signs requests, for engines that verify signatures."""

    def __init__(self, endpoint: str, streams_endpoint: str) -> None:
        self._endpoints = {"dynamodb": endpoint, "streams": streams_endpoint}
        self._signer = SigV4Auth(Credentials("local", "local"), "dynamodb", REGION)
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=CALL_S_MAX))

    async def __aenter__(self) -> Wire:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def call(self, service: str, operation: str, **arguments: Any) -> dict[str, Any]:
        """Call an operation of `dynamodb` or `streams`, and return its answer. Raises WireError."""
        body = json.dumps(arguments).encode()
        headers = {"X-Amz-Target": f"{_TARGETS[service]}.{operation}", "Content-Type": "application/x-amz-json-1.0"}
        url = self._endpoints[service].rstrip("/") + "/"
        request = AWSRequest("POST", url, headers, body)
        self._signer.add_auth(request)
        try:
            async with self._session.post(url, data=body, headers=dict(request.headers.items())) as response:
                document = json.loads(await response.read())
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            raise WireError(NO_ANSWER, str(error)) from None
        if not isinstance(document, dict):
            raise WireError(NO_ANSWER, "the answer is not a JSON object")
        if response.status != 200:
            kind = str(document.get("__type", "Unknown")).rpartition("#")[2]
            raise WireError(kind, str(document.get("message") or document.get("Message") or ""))
        return document
