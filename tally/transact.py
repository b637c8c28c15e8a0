"""Moves counters in one transaction with a team's own writes: everything once under a key, or nothing.

For a function in a team's stack, after `tally.grant_transact(function, ["stock", "usage"])`:

    tally = Transactions.from_environment(caller="checkout")  # once, at cold start

    tally.commit(
        event["order_id"],
        changes=[("stock", "mug", -1), ("usage", "ann", 1)],
        writes=[{"Put": {"TableName": "shop", "Item": {…}, "ConditionExpression": "attribute_not_exists(PK)"}}],
        answer={"order": "o-1"},
        context=context,
    )

The receipt is the first write. The tallies follow, and then the writes of the team. DynamoDB gives a reason for each
write. counting/batch.py judges the reasons in this order:

    1. a receipt: a replay, whatever else failed. The key's first commit may have made the writes' conditions fail
    2. a conflict or throttling: nothing is judged, and the transaction is sent again (12 attempts at most, in 3 s)
    3. a condition of a team's write, then a team's write that DynamoDB rejects
    4. a limit: expired holds are released; if that is not enough, the change is refused

DynamoDB bills a transaction that it cancels, such as the transaction of a replay.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

from . import fields
from .counter import Counter, declared
from .counting import batch
from .counting.batch import TeamWrites
from .dynamo import clock
from .dynamo.client import ANSWER_RESERVE_S, CALL_TIME_DEFAULT_S, Call, Store, dynamodb_client
from .dynamo.items import Write
from .dynamo.keys import FORMAT
from .dynamo.team_writes import check_team_writes
from .dynamo.transactions import TRANSACTION_ITEMS_MAX
from .errors import ConfigurationError, InvalidInputError, PayloadTooLargeError, StoreRefusedError
from .settings import Settings

OPERATION = "change"  # also of POST /changes: a key that a caller sends there and here counts once
ANSWER_BYTES_MAX = 2048  # each KB of a receipt is billed
DYNAMODB_MESSAGE_CHARACTERS_MAX = 300  # enough for one error. A longer message is cut: it may quote an item
_DIGITS_MAX = 18  # a longer Decimal stays a Decimal, because an int of a billion digits takes all memory

Change = tuple[str, str] | tuple[str, str, int | Decimal]
"""A counter, an id, and an amount, unless the counter has a step of its own."""


class Committed(NamedTuple):
    """The result of a commit, or of its replay."""

    answer: Any
    """The `answer`, as JSON has it, of the call that committed: this call, or an earlier call with the same key."""
    replayed: bool
    """Whether an earlier call with the same key committed. Then this call wrote nothing."""
    visible: str
    """When reads show the changes: `now`, or `soon` if a change waits for the rollup."""


class Transactions:
    """Commits changes of counters together with a team's own writes. Make one object for all threads, at cold start."""

    def __init__(self, store: Store, counters: Mapping[str, Counter], caller: str) -> None:
        """`counters`: what commits may change, by name. `caller`: the owner of the keys, such as a service's name."""
        self._store, self._counters, self._caller = store, counters, fields.user(caller, "caller")

    @classmethod
    def from_environment(
        cls, environment: Mapping[str, str] = os.environ, *, caller: str, variable: str = "TALLY_TRANSACT"
    ) -> Transactions:
        """Makes the object from what `grant_transact` put into the variable: the tables, and the deployed counters.

        Raises ConfigurationError: a function that would count otherwise than Tally does must not start.
        """
        if variable not in environment:
            raise ConfigurationError(f"{variable} is not set: tally.grant_transact(function, …) sets it")
        try:
            grant = json.loads(environment[variable])
            package, its_format = grant["version"], grant["format"]
            declarations, variables = grant["counters"], dict(grant["settings"])
        except (KeyError, TypeError, ValueError) as error:
            detail = f"{variable} is not what tally.grant_transact(function, …) sets: {error!r}"
            raise ConfigurationError(detail) from None
        hint = f"install tallystick {package} beside this function, as in the app that deploys it"
        if its_format != FORMAT:
            raise ConfigurationError(f"{variable}: Tally stores format {its_format}, and this package {FORMAT}: {hint}")
        try:
            settings = Settings.from_environment(variables)
            counters = declared(Counter(**one) for one in declarations)
        except (ConfigurationError, TypeError) as error:  # declared with another version
            raise ConfigurationError(f"{variable}: {error}: {hint}") from error
        return cls(Store(dynamodb_client(), settings), counters, caller)

    def commit(
        self,
        key: str,
        changes: Sequence[Change],
        writes: Sequence[Write] = (),
        *,
        answer: Any = None,
        payload: Any = None,
        context: Any = None,
    ) -> Committed:
        """Makes all changes and writes once under `key`, or nothing.

        `key`: the caller's name for this commit. `changes`: limits judge the sum of each tally; amounts may be whole
        Decimals. `writes`: entries of TransactItems. `answer`: JSON of up to 2 KB, which a replay returns. `payload`:
        JSON that, like the sums, must be the same when the key is sent again; the writes may differ. `context`:
        Lambda's argument of the handler, which knows how much time is left.

        Raises CallerError if nothing was written and the same call gets the same error again: LimitReachedError
        (`left`, and `entry` in `members`), WriteRefusedError (`write`, `item`), WriteInvalidError, KeyReusedError,
        InvalidInputError and others. Raises RetryableError if the commit may be written: send it again, with the same
        key. StoreRefusedError says which right or table is missing.
        """
        key = fields.idempotency_key(key, "key", anonymous=False)
        parsed = batch.parse_batch(self._entries(changes), self._counters, clock.now_s(), soon=False)
        settings = self._store.settings
        tables = settings.counts_table, settings.receipts_table, settings.ledger_table
        own_writes = check_team_writes(self._store.client, writes, tables)
        items = 1 + len(parsed.sums) + len(own_writes)  # 1: the receipt
        if items > TRANSACTION_ITEMS_MAX:
            parts = f"A receipt, {len(parsed.sums)} tallies and {len(own_writes)} writes are {items} items"
            raise PayloadTooLargeError(f"{parts}: a transaction has at most {TRANSACTION_ITEMS_MAX}.", field="writes")
        parsed.team = TeamWrites(own_writes, _as_json(answer, "answer", ANSWER_BYTES_MAX), _as_json(payload, "payload"))
        try:
            body, replayed = batch.count(self._call(context), parsed, operation=OPERATION, key=key, soon=False)
        except StoreRefusedError as refused:  # DynamoDB says which right or table is missing
            detail = f"{refused.detail} DynamoDB: {str(refused.__cause__)[:DYNAMODB_MESSAGE_CHARACTERS_MAX]}"
            raise StoreRefusedError(detail) from refused.__cause__
        return Committed(body.get("answer"), replayed, body["visible"])

    def _entries(self, changes: object) -> list[dict[str, object]]:
        """Returns the changes as `POST /changes` has them."""
        if not isinstance(changes, list | tuple):
            raise InvalidInputError("changes must be a list of (counter, id, amount).", field="changes")
        entries: list[dict[str, object]] = []
        for index, change in enumerate(changes):
            place = f"changes[{index}]"
            if not isinstance(change, list | tuple) or len(change) not in (2, 3):
                raise InvalidInputError(f"{place} must be (counter, id), or (counter, id, amount).", field=place)
            name, *rest = change
            if not isinstance(name, str) or name not in self._counters:
                own = ", ".join(self._counters)
                raise InvalidInputError(f"{place}: this function may change {own}, and not {name!r:.64}.", field=place)
            entries.append(dict(zip(("counter", "id", "amount"), (name, *map(_as_int, rest)), strict=False)))
        return fields.changes(entries, "changes")

    def _call(self, context: Any) -> Call:
        left_s = CALL_TIME_DEFAULT_S
        if context is not None:
            try:
                left_s = context.get_remaining_time_in_millis() / 1000 - ANSWER_RESERVE_S
            except AttributeError:
                raise InvalidInputError("context must be what Lambda gives to a handler.", field="context") from None
        return Call(self._store, self._caller, deadline_s=self._store.clock() + left_s)


def _as_int(value: object) -> object:
    """Returns the number as an int, if it is a whole Decimal: boto3 reads every number as a Decimal."""
    if not isinstance(value, Decimal) or not value.is_finite() or value.adjusted() >= _DIGITS_MAX:
        return value
    return int(value) if value == int(value) else value


def _as_json(value: Any, field: str, bytes_max: int | None = None) -> Any:
    """Returns the value as JSON gives it back, so that a first answer and its replay are the same.

    Raises InvalidInputError for a value that JSON cannot have, and PayloadTooLargeError.
    """
    try:
        text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:  # such as a Decimal, NaN, a circle, deep nesting
        raise InvalidInputError(f"{field} cannot be written as JSON: {error}.", field=field) from None
    if bytes_max is not None and len(text) > bytes_max:
        raise PayloadTooLargeError(f"{field} has {len(text)} bytes as JSON: at most {bytes_max} fit.", field=field)
    return json.loads(text)
