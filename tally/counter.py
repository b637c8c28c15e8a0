"""Counters: their declaration in `counters.py`, and the keys that follow from it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

from .errors import ConfigurationError
from .items import EXAMPLE, RECOUNT_GENERATION, TEAM_NUMBER, Items, Watch, short_digest
from .notify import THRESHOLD_MAX, Notify

AMOUNT_MAX = THRESHOLD_MAX  # 10**15: of a change, a start and a limit. A tally may grow to DynamoDB's 38 digits
MAX_SHARDS_DEFAULT = 16  # more would not help, because one DynamoDB partition has all shards (docs/how-it-works.md)
MAX_SHARDS_AUTOMATIC = 0  # __post_init__ replaces it by 1 for a conditional counter, else by MAX_SHARDS_DEFAULT
RECEIPT_DAYS_MAX = 365
RECORD_WRITES_MAX = 98  # for one stream record of a team's table; of 100 writes, one is the checkpoint, one is spare
# How many writes one record makes for one counter, at most: the tallies of the item's old and new group, and a marker
# for an open scan. With `Watched`, also the tally that has the team's number, and the list of groups to compare.
ITEM_WRITES, WATCHED_WRITES = 3, 5
COUNTERS_PER_TABLE_MAX, WATCHED_MAX = RECORD_WRITES_MAX // ITEM_WRITES, RECORD_WRITES_MAX // WATCHED_WRITES
MAX_SHARDS_LIMIT = 256  # a read of 256 shards is one Query page, at 32 read units
PARENT_SHARDS_MAX = 64  # of a counter with children: one transaction, of up to 100 writes, removes a parent's shards
USER_CHILD_PART = "USER"  # the last part of `child` if each child is a user: `LIKE#USER#`
PERIODS = ("minute", "hour", "day", "week", "month", "year")
LOCAL_PERIODS = PERIODS[2:]  # may count visitors or have a timezone: not minute and hour, which local time may repeat
KEEP_PERIODS_MAX = 5000  # the last period is the year 2999, and Python's dates end with the year 9999
_SHARD_NUMBER_DIGITS_MAX = 3  # the last shard is 255
NOW, SOON = "now", "soon"
ANYONE, CALLER, SERVICE = "anyone", "caller", "service"
CHANGES, CHILDREN, VISITORS, ITEMS = "changes", "children", "visitors", "items"
KINDS = {
    CHANGES: "POST …/increments moves it", CHILDREN: "put or delete a child to move it",
    "pages": "POST /visits moves it", "page visitors": "POST /visits moves it", VISITORS: "POST …/visitors moves it",
    ITEMS: "it moves when an item is written there",
}  # fmt: skip
"""What a counter may count, and what moves its number: the end of an error message (`fields.wrong_kind_error`)."""
MAX_AGE_DEFAULT_S, MAX_AGE_MAX_S = 1, 24 * 3600  # CloudFront keeps no answer for longer than a day (stacks/edge.py)
NAME_PATTERN = re.compile(r"[a-z][a-z0-9_-]{0,31}")
_PATTERNS = {
    "name": NAME_PATTERN,
    "prefix": re.compile(r"[A-Z][A-Z0-9]{0,15}"),
    "sort_key": re.compile(r"[A-Z][A-Z0-9.]{0,31}(#[A-Z][A-Z0-9.]{0,31})*"),  # not `#1`, which ends a shard's key
    "attribute": re.compile(r"[A-Za-z][A-Za-z0-9_]{0,31}"),
    "child": re.compile(r"([A-Z][A-Z0-9.]{0,31}#)+"),
    "path": re.compile(r"(/[a-z0-9-]+)*/\{id\}(/[a-z0-9-]+)*"),
}
_RESERVED_ATTRIBUTES = {"PK", "SK", "at", "nonce", "version", "expiration", "gone", "removal", "imported", "start"}
_DEFAULTS_WITH_CHILD = {"delta": None, "start": 0, "floor": None, "ceiling": None, "numbered": False}
"""The fields that a counter of children must leave out, with their defaults."""
_DEFAULTS_WITH_ITEMS = {
    "delta": None, "start": 0, "floor": None, "ceiling": None, "numbered": False, "child": None, "period": None,
    "pages": False, "receipt_days": None, "changes": SERVICE, "retired": False, "debt": 0, "notify": None,
}  # fmt: skip
"""The fields that a counter of items must leave out, with their defaults."""
_RESERVED_PREFIXES = {"HEARTBEAT", "HEALTH"}  # Tally's other items in `counts`; a read of `HEALTH` tests the table


@dataclass(frozen=True)
class Counter:
    """One declared kind of number. A wrong field raises ConfigurationError, which names counter and field.

    Every counter is exact: a change is counted once for its key, for as long as its receipt lives.
    """

    name: str
    """The name in routes, answers and the command."""
    prefix: str
    """The start of the partition key: `VID` makes `VID#9f3a`."""
    sort_key: str
    """The sort key of shard 0; shard k appends `#k`."""
    attribute: str
    """The attribute that holds the number."""
    visible: str = NOW
    """`now`: receipt and count are one transaction, 4 write units. `soon`: the receipt alone, 1 write unit; the rollup
    adds the change within seconds."""
    delta: int | None = None
    """The amount of each change. None: the caller gives the amount."""
    start: int = 0
    """The number before the first change."""
    floor: int | None = None
    """No change takes the number below this. None: no limit."""
    ceiling: int | None = None
    """No change takes the number above this. None: no limit."""
    debt: int = 0
    """How far commits of holds, and increments that say `used`, may take the number beyond its limit."""
    limit_overrides: bool = False
    """Whether `PUT …/limit` may set another floor or ceiling for one id."""
    numbered: bool = False
    """Whether each change returns its number. Each number is given out once, and none is missing."""
    max_shards: int = MAX_SHARDS_AUTOMATIC
    """How many shards a hot tally may use, 1 to 256. Default: 16, or 1 if a change depends on the present number."""
    pages: bool = False
    """Whether its ids are URLs of pages, on hosts that the deployment lists. `POST /visits` moves the number."""
    path: str | None = None
    """A short route beside the general routes: `/videos/{id}/plays`. None: no short route."""
    retired: bool = False
    """Whether it refuses changes. Tally still reads, rolls up and judges it, and settles its open holds."""
    receipt_days: int | None = None
    """The days for which a retry with the same key is recognised, 1 to 365. None: see `receiptTtlHours`."""
    changes: str = SERVICE
    """Who may change it: `anyone`, a `caller` who is signed in, or a `service` whose token has the scope `tally/write`.
    With `child`, `caller` makes the caller the child, and `anyone` also allows a browser without sign-in."""
    read: str = SERVICE
    """Who may read it: `anyone`, or a `service` whose token has the scope `tally/read`."""
    lists: str = SERVICE
    """Who may list its ids and its children: `anyone`, or a `service`."""
    max_age_s: int | None = None
    """The seconds for which a cache may keep what anyone reads, 0 to 86,400. None: 1."""
    child: str | None = None
    """The start of the sort keys of the items that it counts: `LIKE#USER#`. None: it counts no items of Tally's
    table."""
    period: str | None = None
    """Each `minute`, `hour`, `day`, `week` (ISO), `month` or `year` has its own tally, `start`, `floor` and `ceiling`.
    None: one tally for good. A counter with a period has no children, is not numbered, and callers cannot set it."""
    keep_periods: int | None = None
    """For how many later periods a tally is kept, 1 to 5,000. DynamoDB then removes the tally, and reads answer 404.
    None: for good."""
    timezone: str | None = None
    """The timezone of its days, weeks, months and years: `Europe/Paris`. None: UTC."""
    unique: bool = False
    """Whether it counts each visitor once in a period of a day or longer. Only visitors and imports move the number."""
    items: Items | None = None
    """The items of your own table that it counts. Nothing else moves the number."""
    notify: Notify | None = None
    """The thresholds whose crossing is an event."""
    parent_required: ClassVar[bool] = False
    """Whether a child is refused if its parent has no item with the counter's sort key. `PostCounter` sets it."""

    def __post_init__(self) -> None:
        for field, pattern in _PATTERNS.items():
            value = getattr(self, field)
            if value is None and field in ("child", "path"):
                continue
            if not isinstance(value, str) or not pattern.fullmatch(value):
                raise self._error(field, f"must have the form {pattern.pattern}")
        if self.attribute in _RESERVED_ATTRIBUTES:
            raise self._error("attribute", "is an attribute of Tally itself")
        if self.prefix in _RESERVED_PREFIXES:
            raise self._error("prefix", "is a prefix of Tally itself")
        self._check_items()
        self._check_choice("visible", NOW, SOON)
        for field in ("limit_overrides", "numbered", "pages", "retired", "unique"):
            if not isinstance(getattr(self, field), bool):
                raise self._error(field, "must be True or False")
        self._check_unique()
        self._check_numbers()
        if self.receipt_days is not None:
            self._check_integer("receipt_days", 1, RECEIPT_DAYS_MAX)
        if type(self.max_shards) is int and self.max_shards == MAX_SHARDS_AUTOMATIC:
            object.__setattr__(self, "max_shards", 1 if self.is_conditional else MAX_SHARDS_DEFAULT)
        self._check_integer("max_shards", 1, MAX_SHARDS_LIMIT)
        if self.max_shards > 1 and self.is_conditional:
            raise self._error("max_shards", "must be 1: start, floor, ceiling and numbered need the whole number")
        self._check_child()
        self._check_access()
        self._check_period()
        self._check_notify()

    def _check_choice(self, field: str, *choices: str) -> None:
        if getattr(self, field) not in choices:
            raise self._error(field, f"must be one of: {', '.join(choices)}")

    def _check_integer(self, field: str, minimum: int, maximum: int) -> None:
        value = getattr(self, field)
        if type(value) is not int or not minimum <= value <= maximum:  # a bool is not a whole number
            raise self._error(field, f"must be a whole number from {minimum} to {maximum}")

    def _check_left_out(self, defaults: Mapping[str, object], why: str) -> None:
        for field, default in defaults.items():
            if getattr(self, field) != default:
                raise self._error(field, f"must be left out: {why}")

    def _check_numbers(self) -> None:
        for field, optional in (("delta", True), ("start", False), ("floor", True), ("ceiling", True)):
            value = getattr(self, field)
            if value is None and optional:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or abs(value) > AMOUNT_MAX:
                raise self._error(field, f"must be a whole number within ±{AMOUNT_MAX}")
        if self.delta == 0:
            raise self._error("delta", "would never change anything")
        if self.floor is not None and self.start < self.floor:
            raise self._error("floor", f"is above start, which is {self.start}")
        if self.ceiling is not None and self.start > self.ceiling:
            raise self._error("ceiling", f"is below start, which is {self.start}")
        self._check_integer("debt", 0, AMOUNT_MAX)
        if self.debt and not self.takes_holds:
            raise self._error("debt", "goes with holds, which need one limit and no delta")
        if self.debt and self.changes != SERVICE:
            raise self._error("debt", f"needs changes={SERVICE!r}: a browser could say of any amount that it is used")
        if self.numbered and self.delta is None:
            raise self._error("numbered", "needs a delta: numbers that are given out have a fixed step")
        if self.limit_overrides and ((self.floor is None and self.ceiling is None) or self.numbered or self.pages):
            raise self._error("limit_overrides", "needs a floor or a ceiling, and goes with neither numbered nor pages")
        if self.is_rolled_up and self.is_conditional:
            raise self._error("visible", "start, floor, ceiling and numbered need 'now': changes depend on the number")

    def _check_child(self) -> None:
        """Checks a counter of children: one transaction puts a child and adds 1, or deletes a child and subtracts 1."""
        if self.child is None:
            return
        if self.is_rolled_up:
            raise self._error("visible", "must be 'now': each child and its tally move in one transaction")
        self._check_left_out(_DEFAULTS_WITH_CHILD, f"it counts the items {self.child}…")
        if self.max_shards > PARENT_SHARDS_MAX:
            raise self._error("max_shards", f"must be at most {PARENT_SHARDS_MAX}: they are removed in one transaction")

    def _check_items(self) -> None:
        """Checks a counter of items, and sets `visible`: its number follows the items within seconds."""
        if self.items is None:
            return
        if not isinstance(self.items, Items):
            raise self._error("items", "must be Items(…)")
        if self.attribute in (RECOUNT_GENERATION, TEAM_NUMBER, EXAMPLE):
            raise self._error("attribute", "is an attribute that scans write")
        self._check_left_out(_DEFAULTS_WITH_ITEMS, f"it counts the items of {self.items.table}")
        object.__setattr__(self, "visible", SOON)

    def _check_unique(self) -> None:
        """Checks a counter of visitors, and sets `delta`: each visitor adds 1 in a period."""
        if not self.unique:
            return
        if self.period not in LOCAL_PERIODS:
            raise self._error("unique", f"needs a period, one of: {', '.join(LOCAL_PERIODS)}")
        if self.delta not in (None, 1):
            raise self._error("delta", "must be 1: a visitor counts as 1")
        object.__setattr__(self, "delta", 1)
        why = "only services add its visitors, each once in a period"
        self._check_left_out({"start": 0, "floor": None, "receipt_days": None, "changes": SERVICE}, why)
        if self.child is not None:
            raise self._error("unique", "child is set: it counts visitors or items, not both")

    def _check_access(self) -> None:
        self._check_choice("changes", ANYONE, CALLER, SERVICE)
        self._check_choice("read", ANYONE, SERVICE)
        self._check_choice("lists", ANYONE, SERVICE)
        if self.lists == ANYONE and not self.public:
            raise self._error("lists", f"needs read={ANYONE!r}: a list has the numbers, too")
        if self.child is not None and self.changes != SERVICE and not self.counts_users:
            raise self._error("changes", f"its child must end with {USER_CHILD_PART}#: the caller is a user")
        if self.path is not None and self.pages:
            raise self._error("path", "must be left out: the URL of a page is not part of a path")
        if self.max_age_s is not None:
            self._check_integer("max_age_s", 0, MAX_AGE_MAX_S)
            if not self.public:
                raise self._error("max_age_s", f"needs read={ANYONE!r}: caches keep only what anyone may read")

    def _check_period(self) -> None:
        if self.period is None:
            for field in ("keep_periods", "timezone"):
                if getattr(self, field) is not None:
                    raise self._error(field, "goes with a period")
            return
        self._check_choice("period", *PERIODS)
        if self.numbered or self.child is not None:
            raise self._error("period", "must be left out: numbered and child are for one tally for good")
        if self.keep_periods is not None:
            self._check_integer("keep_periods", 1, KEEP_PERIODS_MAX)
        if self.timezone is None:
            return
        from zoneinfo import ZoneInfo  # 6 ms, and few counters have a timezone

        if self.period not in LOCAL_PERIODS:
            raise self._error("timezone", f"must be left out: a {self.period} of local time may come twice")
        try:
            ZoneInfo(str(self.timezone))
        except (KeyError, ValueError, OSError):  # OSError: `Europe` is a folder
            raise self._error("timezone", "must be a name of the IANA database, like Europe/Paris") from None

    def _check_notify(self) -> None:
        notify = self.notify
        if notify is None:
            return
        wrong = notify.invalid_reason if isinstance(notify, Notify) else "must be Notify(…)"
        if wrong:
            raise self._error("notify", wrong)
        if notify.percent and (self.ceiling or 0) <= 0:
            raise self._error("notify", "percent needs a ceiling above 0")
        if not (self.has_version or self.counts_children or self.unique or (self.delta or 0) > 0):
            raise self._error("notify", "Tally sees no sum of shards go down: give a delta above 0, or max_shards=1")
        if notify.every is not None and self.numbered and (self.delta or 0) < 0:
            raise self._error("notify", f"every needs numbers that go up, and delta is {self.delta}: give at instead")
        low, high = self._least_and_greatest()
        may_override_ceiling = self.limit_overrides and self.ceiling is not None
        if unreachable := notify.unreachable_reason(None if may_override_ceiling else self.ceiling, low, high):
            raise self._error("notify", unreachable)

    def _least_and_greatest(self) -> tuple[int | None, int | None]:
        """Returns the least and the greatest number that a tally can have; None: there is no bound. With a `delta`,
        changes go only up or only down from the start, unless callers set the number. Callers can set a numbered
        counter only in the direction of its `delta`, by any step."""
        if not self.has_version or (self.counts != CHANGES and self.delta is None):
            return 0, None  # children, visits, or shards (`_check_notify` refuses shards whose sum can go down)
        # An override replaces the ceiling, or the floor of a counter without a ceiling.
        may_override_floor = self.limit_overrides and self.ceiling is None
        low = None if self.floor is None or may_override_floor else self.floor - self.debt
        high = None if self.ceiling is None or self.limit_overrides else self.ceiling + self.debt
        if self.delta is None or (self.may_be_set and not self.numbered and self.counts == CHANGES):
            return low, high
        step = 1 if self.numbered else abs(self.delta)
        if self.delta > 0:
            return self.start, high if high is None else high - (high - self.start) % step  # whole steps from start
        return low if low is None else low + (self.start - low) % step, self.start

    def _error(self, field: str, why: str) -> ConfigurationError:
        return ConfigurationError(f"counter {self.name!r}: {field} is {getattr(self, field)!r}, but {why}")

    @cached_property
    def is_rolled_up(self) -> bool:
        """Whether the rollup adds every change: `visible="soon"`."""
        return self.visible == SOON

    @cached_property
    def is_conditional(self) -> bool:
        """Whether a change depends on the present number. One item then has the whole number."""
        return self.numbered or self.start != 0 or self.floor is not None or self.ceiling is not None

    @cached_property
    def has_version(self) -> bool:
        """Whether its item has a version: it has one shard and is not rolled up."""
        return self.max_shards == 1 and not self.is_rolled_up

    @cached_property
    def may_be_set(self) -> bool:
        """Whether reads return the version, with which callers can set the number (but not that of pages). With periods
        they cannot: a version that they read in one period could fit the tally of the next period."""
        return self.has_version and self.period is None and self.child is None

    @cached_property
    def may_spill(self) -> bool:
        """Whether a change spills if its tally is hot. With `visible="soon"` every change spills. With a version no
        change spills, because the next change needs the version."""
        return not self.is_rolled_up and not self.has_version

    @cached_property
    def may_roll_up(self) -> bool:
        """Whether the rollup may add changes to its tallies. It never adds to a tally of items or with a version."""
        return not self.has_version and self.items is None

    @cached_property
    def counts(self) -> str:
        """What it counts, and so what moves it: one of KINDS."""
        pages_kind = "page visitors" if self.unique else "pages"
        by_kind = {"items": self.items, "children": self.child, pages_kind: self.pages, "visitors": self.unique}
        return next((kind for kind, declared_field in by_kind.items() if declared_field), CHANGES)

    @cached_property
    def is_batchable(self) -> bool:
        """Whether a batch may contain changes of this counter. A numbered counter gives out one number at a time."""
        return self.counts == CHANGES and not self.numbered

    @cached_property
    def takes_holds(self) -> bool:
        """Whether callers can hold an amount: it has either a floor or a ceiling, and no `delta`."""
        return self.delta is None and (self.floor is None) != (self.ceiling is None)

    @cached_property
    def may_settle_holds(self) -> bool:
        """Whether it may have holds to settle: it takes holds, or may have taken holds under an earlier declaration. A
        deploy refuses to give a counter with holds many shards, children or numbers (streams/fingerprints.py)."""
        return self.has_version and self.child is None and not self.numbered

    @property
    def notifies(self) -> bool:
        """Whether it has thresholds, so that a crossing makes an event."""
        return self.notify is not None

    @cached_property
    def public(self) -> bool:
        """Whether anyone may read it."""
        return self.read == ANYONE

    @cached_property
    def listed(self) -> bool:
        """Whether anyone may list its ids and children."""
        return self.lists == ANYONE

    @cached_property
    def cache_s(self) -> int:
        """For how long a cache may keep its number, in seconds."""
        return MAX_AGE_DEFAULT_S if self.max_age_s is None else self.max_age_s

    @cached_property
    def counts_children(self) -> bool:
        """Whether it counts children, which callers put and delete one by one."""
        return self.counts == CHILDREN

    @cached_property
    def counts_users(self) -> bool:
        """Whether its children are users, so that `tally forget` removes a user's children."""
        return self.child is not None and self.child.split("#")[-2] == USER_CHILD_PART

    @cached_property
    def watch(self) -> Watch | None:
        """The number of the team's code that is compared with the count; None if the counter has no such number."""
        return self.items.watch if self.items else None

    @property
    def watched(self) -> str | None:
        """The attribute that has the number of the team's code; None if the counter has no such number."""
        return self.watch.attribute if self.watch else None

    @cached_property
    def items_digest(self) -> str:
        """A digest of what a counter of items counts, and of the keys of its numbers. If a scan stored another digest,
        the numbers are of another declaration."""
        assert self.items is not None
        return short_digest(self.prefix, self.sort_key, self.attribute, self.items.digest_fields)

    @cached_property
    def partition_start(self) -> str:
        """`VID#`: the partition key without the id that follows. No id has a `#` (fields.py), so none forges a key."""
        return f"{self.prefix}#"

    def shard_key(self, shard: int) -> str:
        """Returns the sort key of one shard."""
        return f"{self.sort_key}#{shard}" if shard else self.sort_key

    @cached_property
    def child_range(self) -> tuple[str, str]:
        """The start of its children's sort keys, and a text after all these keys. Without `child` raises an error."""
        if self.child is None:
            raise self._error("child", "is needed for its items")
        return self.child, f"{self.child[:-1]}{chr(ord(self.child[-1]) + 1)}"

    @cached_property
    def shard_range(self) -> tuple[str, str]:
        """The first and last sort key for BETWEEN: every shard, and nothing else that Tally writes (`:` follows `9`).

        A person may have written other keys between the two, such as `META#3x`: for these, `shard_of` returns None.
        """
        return self.sort_key, f"{self.sort_key}#:"

    def shard_of(self, sort_key: str) -> int | None:
        """Returns the shard with this sort key; None if there is no such shard: `META#3x`, `META#03`."""
        if sort_key == self.sort_key:
            return 0
        digits = sort_key[len(self.sort_key) + 1 :]
        if not (digits.isascii() and digits.isdigit() and len(digits) <= _SHARD_NUMBER_DIGITS_MAX):
            return None
        shard = int(digits)
        return shard if shard and sort_key == self.shard_key(shard) else None


def Watched(
    name: str,
    *,
    table: str,
    attribute: str,
    items: Items,
    at: str = "",  # `Watch` refuses this default with a ConfigurationError, as it refuses other wrong values
    within_s: int = 60,
    same_transaction: bool = False,
    read: str = SERVICE,
) -> Counter:
    """Returns a counter of items. Tally compares the exact count with a number that the team's own code keeps.

        POST_LIKES = Watched(
            "post_likes", table="social", attribute="likeTally",
            items=Items("social", partition_prefix="POST#", sort_key="SK", sort_prefix="LIKE#"), at="META",
        )

    The team's number is `attribute` of the item of the same partition whose sort key is `at`. Only the team writes this
    item, and Tally does not count it. The number may be `within_s` seconds behind the items, or ahead of them.
    `same_transaction`: one transaction of the team always writes the number and the items.
    """
    if not (isinstance(name, str) and isinstance(items, Items)):
        raise ConfigurationError(f"counter {name!r}: items is {items!r}, but must be Items(…), and the name a text")
    if items.table != table:
        raise ConfigurationError(f"counter {name!r}: table is {table!r}, but its items are in {items.table!r}")
    prefix = re.sub("[^A-Z0-9]", "", f"W{name.upper()}")[:16]  # another counter may have it, but not this sort key
    return Counter(
        name, prefix=prefix, sort_key=f"ITEMS.{short_digest(name).upper()}", attribute="items", read=read, max_shards=1,
        items=replace(items, watch=Watch(attribute, at, within_s, same_transaction)),
    )  # fmt: skip


def declared(counters: Iterable[Counter]) -> dict[str, Counter]:
    """Returns the counters by name.

    Raises ConfigurationError if two counters have one name or path, or would share an item, or if the counters of a
    team's table do not agree about its heartbeats, or need more writes for a record than a transaction takes.
    """
    by_name: dict[str, Counter] = {}
    by_item: dict[tuple[str, str], Counter] = {}
    by_path: dict[str, Counter] = {}
    for counter in counters:
        if counter.name in by_name:
            raise ConfigurationError(f"counter {counter.name!r}: name is declared twice")
        other = by_item.get((counter.prefix, counter.sort_key))
        if other is not None:
            key = f"sort_key {counter.sort_key!r} of {counter.prefix!r}"
            raise ConfigurationError(f"counter {counter.name!r}: {key} is the key of {other.name!r}")
        by_name[counter.name] = by_item[counter.prefix, counter.sort_key] = counter
        if counter.path in by_path:
            other = by_path[counter.path]
            raise ConfigurationError(f"counter {counter.name!r}: path {counter.path!r} is the path of {other.name!r}")
        if counter.path is not None:
            by_path[counter.path] = counter
    _check_tables(by_name.values())
    _check_children(by_name.values(), by_item)
    return by_name


def _check_tables(counters: Iterable[Counter]) -> None:
    by_table: dict[str, list[Items]] = {}
    for counter in counters:
        if counter.items is None:
            continue
        table, has_heartbeats = counter.items.table, counter.items.heartbeats
        others = by_table.setdefault(table, [])
        if any(other.heartbeats is not has_heartbeats for other in others):
            must = f"must be the same in all counters of the table {table!r}"
            why = "a counter without heartbeats would count them"
            raise ConfigurationError(f"counter {counter.name!r}: heartbeats is {has_heartbeats}, but {must}: {why}")
        others.append(counter.items)
        if sum(WATCHED_WRITES if other.watch else ITEM_WRITES for other in others) > RECORD_WRITES_MAX:
            why = f"too many counters count items of the table {table!r}. One record moves all of their numbers in one"
            most = f"declare at most {COUNTERS_PER_TABLE_MAX} for a table, or {WATCHED_MAX} that `Watched` makes"
            raise ConfigurationError(f"counter {counter.name!r}: {why} transaction: {most}")


def _check_children(counters: Collection[Counter], by_item: Mapping[tuple[str, str], Counter]) -> None:
    """Raises ConfigurationError if tallies or children of a counter are among the children of another counter, or if a
    read of a post would find a tally. Looks up the starts of each counter's keys, because a comparison of each pair of
    500 counters took 0.1 s of a cold start."""
    by_child: dict[tuple[str, str], Counter] = {}
    for counter in counters:
        if counter.child is not None:
            by_child.setdefault((counter.prefix, counter.child), counter)
    for counter in counters:
        # A post has children. A read of a post reads from `META` to `META.BODY`, so it would also read `META.A`.
        dot_owners = [by_item.get((counter.prefix, start[:-1])) for start in _starts(counter.sort_key, ".")]
        child_owners = [by_child.get((counter.prefix, start)) for start in _starts(f"{counter.sort_key}#", "#")]
        for owner in (*child_owners, *dot_owners):
            if owner is not None and owner.child is not None:
                key = f"sort_key {counter.sort_key!r} of {counter.prefix!r}"
                raise ConfigurationError(f"counter {counter.name!r}: {key} is reserved for the items of {owner.name!r}")
        for start in _starts(counter.child or "", "#"):
            owner = by_child.get((counter.prefix, start), counter)
            if owner is not counter:
                child = f"child {counter.child!r} of {counter.prefix!r} is among the children of {owner.name!r}"
                raise ConfigurationError(f"counter {counter.name!r}: {child}: both would count them")


def _starts(text: str, sign: str) -> list[str]:
    """Returns the starts of a text that end with this sign: `A#` and `A#B#` for `A#B#` and the sign `#`."""
    return [text[: at + 1] for at, character in enumerate(text) if character == sign]
