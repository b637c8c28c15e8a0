"""Checks the writes that a team adds to a transaction of Tally's (tally/transact.py) before they are sent.

Tally's DynamoDB client checks no parameters, so this module checks shape and tables. DynamoDB checks the rest: values,
keys, sizes and expressions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from botocore.validate import ParamValidator

from ..errors import InvalidInputError, PayloadTooLargeError
from .items import Write

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

REQUEST_BYTES_MAX = 16 * 1024 * 1024  # of all writes; far above 4 MB, because only DynamoDB counts these 4 MB exactly
_WIRE_FORM = 'Values need DynamoDB\'s form: {"S": "mug"}, {"N": "7"}. Use boto3.dynamodb.types.TypeSerializer.'
_MESSAGE_CHARACTERS_MAX = 200  # of botocore's message, which may quote a whole item


def check_team_writes(client: DynamoDBClient, writes: object, forbidden_tables: Collection[str]) -> list[Write]:
    """Returns the writes, each with the request to return the old item if the write's condition fails.

    `forbidden_tables`: tables that no write may touch. Raises InvalidInputError, which names the write. Beyond
    REQUEST_BYTES_MAX, which DynamoDB would not read, raises PayloadTooLargeError.
    """
    if not isinstance(writes, Sequence) or isinstance(writes, str | bytes):
        raise InvalidInputError('writes must be a list of TransactItems: [{"Put": {…}}, …].', field="writes")
    shape = client.meta.service_model.shape_for("TransactWriteItem")
    checked = list[Write]()
    for index, write in enumerate(writes):
        place = f"writes[{index}]"
        try:
            wrong, _, _ = ParamValidator().validate(write, shape).generate_report().partition("\n")
            if not wrong:
                _bytes(write)
        except (ValueError, RecursionError) as error:
            raise InvalidInputError(f"{place} cannot be sent: {error}.", field=place) from None
        if wrong:
            hint = f" {_WIRE_FORM}" if re.search(r"\.(Item|Key|ExpressionAttributeValues)\b", wrong) else ""
            raise InvalidInputError(f"{place}: {wrong[:_MESSAGE_CHARACTERS_MAX]}.{hint}", field=place)
        if len(write) != 1:
            raise InvalidInputError(f"{place} must be one of Put, Update, Delete and ConditionCheck.", field=place)
        ((action, parameters),) = write.items()
        if parameters["TableName"].rpartition("/")[2] in forbidden_tables:  # a table may be named by its ARN
            raise InvalidInputError(
                f"{place} is of a table of Tally's: only Tally's changes may write there.", field=place
            )
        checked.append({action: {**parameters, "ReturnValuesOnConditionCheckFailure": "ALL_OLD"}})
    if sum(map(_bytes, checked)) > REQUEST_BYTES_MAX:
        raise PayloadTooLargeError("writes have more than the 4 MB that a transaction takes.", field="writes")
    return checked


def _bytes(write: Write) -> int:
    """Returns about how many bytes a write has. Raises ValueError for half a surrogate pair, or a value in itself."""
    return len(json.dumps(write, ensure_ascii=False, default=str).encode())  # `default`: for bytes
