"""A CloudFormation template: its resources, with references resolved to their values on this machine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ..base.account import ACCOUNT, REGION
from ..base.errors import LocalError

STACK = "Tally-local"
_PSEUDO = {
    "AWS::Region": REGION,
    "AWS::AccountId": ACCOUNT,
    "AWS::Partition": "aws",
    "AWS::URLSuffix": "amazonaws.com",
    "AWS::StackName": STACK,
    "AWS::StackId": f"arn:aws:cloudformation:{REGION}:{ACCOUNT}:stack/{STACK}/local",
}
_BUCKET_CHARACTERS_MAX = 63
Node = Any
"""A value in a template: JSON."""


class Document:
    """The resources of one template. An unreadable part raises a LocalError that names it."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.resources: Mapping[str, Any] = document.get("Resources", {})
        self.outputs: Mapping[str, Any] = document.get("Outputs", {})

    def ids(self, kind: str) -> list[str]:
        """The logical ids of the resources of a type."""
        return [id_ for id_, resource in self.resources.items() if resource["Type"] == kind]

    def properties(self, id_: str) -> dict[str, Any]:
        """The properties of a resource."""
        return dict(self.resources[id_].get("Properties", {}))

    def need(self, id_: str, name: str) -> Node:
        """One property of a resource. Raises LocalError if it is missing."""
        try:
            return self.properties(id_)[name]
        except KeyError:
            raise LocalError(f"the template's {id_} has no {name}") from None

    def table_name(self, id_: str) -> str:
        """From stack and logical id, whatever the template's: local data keeps its name. More than 11 characters."""
        return f"{STACK}-{id_}"

    def function_name(self, id_: str) -> str:
        """A function's local name: its handler's module."""
        return str(self.need(id_, "Handler")).rpartition(".")[2]

    def bucket_name(self, id_: str) -> str:
        """A name like CloudFormation's: lower case, and no longer than S3 allows."""
        return str(self.properties(id_).get("BucketName") or f"{STACK}-{id_}".lower()[:_BUCKET_CHARACTERS_MAX])

    def function_behind(self, node: Node, what: str) -> str:
        """The function behind a reference or an alias. Raises LocalError, which names `what`, if there is none."""
        target = self.reference(node)
        for _ in range(3):  # alias, version, function
            kind = self.resources[target]["Type"]
            if kind == "AWS::Lambda::Function":
                return self.function_name(target)
            if kind not in {"AWS::Lambda::Alias", "AWS::Lambda::Version"}:
                break
            target = self.reference(self.need(target, "FunctionName"))
        raise LocalError(f"{what} leads to {target}, which is no function that runs here")

    def reference(self, node: Node) -> str:
        """The logical id in a Ref or GetAtt."""
        match node:
            case {"Ref": str(id_)} | {"Fn::GetAtt": [str(id_), _]} if id_ in self.resources:
                return id_
        raise LocalError(f"the template has a reference that the local run cannot resolve: {json.dumps(node)[:200]}")

    def value(self, node: Node) -> Node:
        """A value with its references resolved. Raises LocalError."""
        match node:
            case {"Ref": str(id_)} if len(node) == 1:
                return self._ref(id_)
            case {"Fn::GetAtt": [str(id_), str(attribute)]}:
                return self._attribute(id_, attribute)
            case {"Fn::Join": [str(separator), list(parts)]}:
                return separator.join(str(self.value(part)) for part in parts)
            case dict():
                unknown = next((name for name in node if name.startswith("Fn::") or name == "Condition"), None)
                if unknown:
                    raise LocalError(f"the template uses {unknown}, which the local run cannot read")
                return {name: self.value(entry) for name, entry in node.items()}
            case list():
                return [self.value(entry) for entry in node]
        return node

    def _ref(self, id_: str) -> Node:
        if id_ in _PSEUDO:
            return _PSEUDO[id_]
        if id_ not in self.resources:
            raise LocalError(f"the template refers to {id_}, which is not in it")
        match self.resources[id_]["Type"]:
            case "AWS::DynamoDB::Table":
                return self.table_name(id_)
            case "AWS::Lambda::Function":
                return self.function_name(id_)
            case "AWS::Lambda::Alias":
                behind = self.function_behind(self.need(id_, "FunctionName"), id_)
                return f"{_function_arn(behind)}:{self.need(id_, 'Name')}"
            case "AWS::S3::Bucket":
                return self.bucket_name(id_)
        return id_  # it exists on AWS only: use its logical id as its name

    def _attribute(self, id_: str, attribute: str) -> Node:
        if id_ not in self.resources:
            raise LocalError(f"the template refers to {id_}, which is not in it")
        match self.resources[id_]["Type"], attribute:
            case "AWS::DynamoDB::Table", "Arn":
                return f"arn:aws:dynamodb:{REGION}:{ACCOUNT}:table/{self.table_name(id_)}"
            case "AWS::DynamoDB::Table", "StreamArn":
                return stream_stand_in(self.table_name(id_))
            case "AWS::Lambda::Function", "Arn":
                return _function_arn(self.function_name(id_))
            case "AWS::S3::Bucket", "Arn":
                return f"arn:aws:s3:::{self.bucket_name(id_)}"
        return f"{id_}.{attribute}"


def stream_stand_in(table: str) -> str:
    """A placeholder for the ARN of a table's stream, until the engine has made the table."""
    return f"arn:aws:dynamodb:{REGION}:{ACCOUNT}:table/{table}/stream/local"


def _function_arn(name: str) -> str:
    return f"arn:aws:lambda:{REGION}:{ACCOUNT}:function:{name}"
