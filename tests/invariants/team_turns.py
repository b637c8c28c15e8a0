"""Random actions on a team table: writes, and consumers and scans that die, overlap, repeat and sleep.

A seed decides everything. Before or after a request of a process, other processes may act.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from tally.counter import Counter
from tally.counter import Watched as WatchedNumber
from tally.dynamo import items as writes
from tally.dynamo import keys, queries
from tally.dynamo.keys import Item
from tally.dynamo.transactions import try_commit
from tally.items import Fault, Items
from tally.streams.lineage import Checkpoint
from tally.team import scan_state
from tally.team.recounts import Recount
from tally.team.scan_reader import ScanClosedError, Step
from tests.contexts import LambdaContext
from tests.delivery import Delivery, Handler
from tests.invariants.processes import WRITES, Crash, WatchedClient
from tests.invariants.simulation import Clock
from tests.invariants.team_table import Team

ORDERS: dict[str, Any] = {"table": "shop", "partition_prefix": "CUSTOMER#", "sort_key": "SK", "sort_prefix": "ORDER#"}
COUNTERS = {
    counter.name: counter
    for counter in (
        Counter(
            "open", prefix="OPENORD", sort_key="OPEN", attribute="open", items=Items(**ORDERS, where={"status": "open"})
        ),
        Counter(
            "spent", prefix="SPENT", sort_key="TOTAL", attribute="spent", items=Items(**ORDERS, amount="total", scale=1)
        ),
        Counter(
            "tickets", prefix="QTICKETS", sort_key="OPEN", attribute="tickets",
            items=Items("shop", partition_prefix="TICKET#", where={"status": "open"}, group_by="queue"),
        ),
        Counter("all", prefix="ALLORD", sort_key="ALL", attribute="all", items=Items(**ORDERS)),
    )
}  # fmt: skip
ORDERS_NUMBER = WatchedNumber(
    "profile_orders", table="shop", attribute="orders", at="PROFILE",
    items=Items("shop", partition_prefix="CUSTOMER#", sort_key="SK", sort_prefix="O"),
)  # fmt: skip
"""The team number in a customer's profile: the number of orders, which the team may store wrongly. Of a customer's
items, only orders have a sort key with `O`."""
GOOD_TOTALS: list[Item] = [{"N": "12"}, {"N": "7.0"}, {"N": "-0.5"}, {"N": "5"}]  # totals that `spent` can count
GOOD_QUEUES: list[Item] = [{"S": "it"}, {"S": "hr desk"}, {"S": "a#b"}, {"BOOL": True}, {"S": "返" * 40}]
READS = frozenset({"get_item", "query", "batch_get_item", "scan"})
SHARDS = 3  # how many stream shards the model has
STAMP_SKEW_S = 60.0  # how far the creation time of a record is wrong, at most. Tally allows for CLOCK_SLACK (300 s)
LISTED_AFTER_S = 60  # DynamoDB may list a new shard so late, so the sweep proves nothing about records of this time
COMPLETE_AFTER_S = 400  # so long after its end a scan is complete: more than CLOCK_SLACK and LISTED_AFTER_S together
NESTED_MAX = 2  # a process acts during a request of a process, which acts during a request of a third process


def random_write(chance: random.Random) -> tuple[str, str, Item | None]:
    """Returns a write of the team: partition key, sort key, and attributes. Attributes None: a deletion."""
    if chance.random() < 0.6:
        pk, sk = f"CUSTOMER#{chance.choice('abc')}", f"ORDER#{chance.randrange(6)}"
    elif chance.random() < 0.8:
        pk, sk = f"TICKET#{chance.randrange(6)}", "META"
    else:
        pk, sk = f"CUSTOMER#{chance.choice('abc')}", "PROFILE"
    if chance.random() < 0.25:
        return pk, sk, None
    if sk == "PROFILE":
        number = chance.choice([*({"N": str(chance.randrange(9))} for _ in range(4)), {"N": "1.5"}, {"S": "x"}, {}])
        return pk, sk, {"orders": number} if number else {}
    total = chance.choice([*GOOD_TOTALS, {}, {"S": "x"}, {"N": "0.30000000000000004"}, {"N": "1E+20"}])
    queue = chance.choice([*GOOD_QUEUES, {"SS": ["it"]}, {"S": "x" * 129}])
    status = chance.choice([{"S": "open"}, {"S": "open"}, {"S": "closed"}, {"BOOL": True}])
    return pk, sk, {"status": status, "queue": queue} | ({"total": total} if total else {})


def corrected_attributes(chance: random.Random, item: Item) -> Item:
    """Returns new attributes for an item, which every counter can count."""
    if item["SK"]["S"] == "PROFILE":
        return {"orders": {"N": "3"}}  # any whole number
    return {"status": {"S": "open"}, "queue": chance.choice(GOOD_QUEUES), "total": chance.choice(GOOD_TOTALS)}


@dataclass
class TeamSchedule:
    """A team table whose items are spread over some stream shards, with consumers and scans. `open_scans`: processes
    that continue a scan, with their next steps. `nesting_depth`: how many processes are interrupted now."""

    team: Team
    chance: random.Random
    clock: Clock
    shards: list[Delivery] = field(init=False)
    open_scans: list[tuple[Recount, Iterator[Step]]] = field(default_factory=list)
    nesting_depth: int = 0

    def __post_init__(self) -> None:
        self.shards = [Delivery(self.team.process(), self.team.table, f"shard-{number}") for number in range(SHARDS)]
        self.warm_processes = [self.team.process(), self.team.process()]  # each process gets many batches

    # ---- the actions ----

    def write(self) -> None:
        """Write as the team. The creation time of the record is slightly wrong."""
        self.clock.pass_s(self.chance.choice((0, 1, 20, 60)))
        pk, sk, attributes = self._next_write()
        if attributes is None:
            self.team.delete(pk, sk)
        else:
            self.team.put(pk, sk, **attributes)
        for record in self.team.stream.read_new():
            # All records of an item are in one shard.
            shard = self.shards[sum(map(ord, record["dynamodb"]["Keys"]["PK"]["S"])) % SHARDS]
            skew_s = self.chance.uniform(-STAMP_SKEW_S, STAMP_SKEW_S)
            record["dynamodb"]["ApproximateCreationDateTime"] = self.clock() + skew_s
            shard.records.append(record)

    def _next_write(self) -> tuple[str, str, Item | None]:
        """Returns a random write, or the correction of an item that some counter cannot count."""
        if self.chance.random() < 0.15:
            declared = [counter.items for counter in self.team.counters.values() if counter.items is not None]
            faulty = [
                item
                for item in self.team.items()
                if any(isinstance(items.contribution_or_fault(item), Fault) for items in declared)
            ]
            if faulty:
                item = self.chance.choice(faulty)
                return item["PK"]["S"], item["SK"]["S"], corrected_attributes(self.chance, item)
        return random_write(self.chance)

    def deliver(self) -> None:
        """Deliver a batch, perhaps with earlier records. The process may die, and other processes may act."""
        shard, size = self.chance.choice(self.shards), self.chance.randint(1, 12)
        batch = shard.batch(size, repeats=self.chance.choice((0, 0, 3, 30)))
        try:
            failed_sequence = shard.invoke(batch, LambdaContext(), self._process())
        except Crash:
            return
        if batch and failed_sequence is None:
            shard.position = max(shard.position, shard.records.index(batch[-1]) + 1)

    def scan(self) -> None:
        """Begin a scan, also while another scan is open, or continue a scan in a separate process."""
        names = list(self.team.counters)
        if self.chance.random() < 0.03 or not self.open_scans:
            name = self.chance.choice(names)
            groups = self.chance.choice([(), (), ("a",), ("it",) if name == "tickets" else ("b", "c")])
            scan_state.begin(self.team.store, self.team.counters[name], time.time(), groups)
        if self.chance.random() < 0.2 or not self.open_scans:
            recount = replace(self.team.recount(self.chance.choice(names)), now_s=self.clock)
            if recount.scan.closed:
                return
            recount = replace(
                recount, store=replace(self.team.store, client=self._client()), page_items=self.chance.choice((0, 3))
            )
            self.open_scans.append((recount, recount.run_steps()))
        recount, steps = self.open_scans.pop(self.chance.randrange(len(self.open_scans)))
        try:
            if (
                next(steps, None) is not None and self.chance.random() > 0.05
            ):  # else the process has read all items, or dies
                self.open_scans.append((recount, steps))
        except (Crash, ScanClosedError):
            pass

    def set_numbers(self) -> None:
        """If a scan is complete, set the numbers. The process may die, and other processes may act."""
        self.sweep()
        recount = replace(self.team.recount(self.chance.choice(list(self.team.counters))), now_s=self.clock)
        if recount.scan.closed:
            return
        recount = replace(recount, store=replace(self.team.store, client=self._client()))
        try:
            if not recount.is_complete():
                return
            groups = recount.scan.groups
            differences = map(recount.difference, groups) if groups else recount.all_differences()
            outcomes = [recount.set_number(difference) for difference in recount.set_many(list(differences))]
            if all(outcomes):
                recount.close(has_counted_all=not groups)
        except (Crash, ScanClosedError):
            return

    def sweep(self) -> None:
        """Store how far the consumer has come, as the sweep does."""
        store, passed_s = self.team.store, self.clock() - LISTED_AFTER_S
        for shard in self.shards:  # of a shard with a record that is not applied, only its checkpoint is passed
            key = keys.key(*keys.checkpoint_key("items", "shop", shard.shard))
            checkpoint = Checkpoint.of(queries.get(store.client, store.settings.ledger_table, key))
            sequences = [int(record["dynamodb"]["SequenceNumber"]) for record in shard.records]
            if any(sequence > int(checkpoint.sequence or 0) for sequence in sequences):
                passed_s = min(passed_s, checkpoint.through_s)
        attributes = {"passed": int(max(scan_state.passed_s(store, "shop"), passed_s))}
        try_commit(store, [writes.put_write(store.settings.ledger_table, scan_state.passed_key("shop"), attributes)])

    # ---- many actions ----

    def act_at_random(self) -> None:
        """Do one random action."""
        drawn = self.chance.random()
        if drawn < 0.4:
            self.write()
        elif drawn < 0.7:
            self.deliver()
        elif drawn < 0.95:
            self.scan()
        else:
            self.set_numbers()

    def deliver_all(self) -> None:
        """Deliver all records that are not delivered."""
        for shard in self.shards:
            shard.process = self.warm_processes[0]
            shard.deliver_all(LambdaContext())

    def count(self, name: str) -> None:
        """Count the stored items, as `tally scan` does, while the team writes."""
        scan = scan_state.begin(self.team.store, self.team.counters[name], time.time())
        assert scan is not None
        recount = replace(self.team.recount(name, scan), page_items=5, now_s=self.clock)
        for _ in recount.run_steps():
            self.write()
        for pass_s in (0, COMPLETE_AFTER_S, COMPLETE_AFTER_S):  # later records prove that the scan's end is passed
            self.clock.pass_s(pass_s)
            self.write()
            self.deliver_all()
        self.sweep()
        assert recount.is_complete()
        self.write()
        for difference in recount.set_many(list(recount.all_differences())):
            self.write()
            # A record may have moved the number after the read of the difference.
            assert recount.set_number(difference) or recount.set_number(recount.difference(difference.group))
            self.deliver_all()
        recount.close(has_counted_all=True)
        self.clock.pass_s(COMPLETE_AFTER_S)

    def _process(self) -> Handler:
        """Returns a new process that may die or be interrupted, or a process that has got batches before."""
        is_new = self.chance.random() < 0.7
        return self.team.process(self._client()) if is_new else self.chance.choice(self.warm_processes)

    def _client(self) -> Any:
        """Returns a client whose process dies at a write, or lets other processes act at a request, or neither."""
        fate = self.chance.random()
        is_interrupted, dies = fate < 0.6, 0.6 <= fate <= 0.9
        client = WatchedClient(self.team.wire, WRITES | READS if is_interrupted else WRITES)
        request_number, turns = self.chance.randrange(8 if is_interrupted else 2), self.chance.randint(1, 6)

        def die(number: int, *_: object) -> None:
            if number == request_number:
                raise Crash

        def let_others_act(number: int, *_: object) -> None:
            if number == request_number and self.nesting_depth < NESTED_MAX:
                self.nesting_depth += 1
                for _ in range(turns):
                    self.act_at_random()
                self.nesting_depth -= 1

        if not is_interrupted and not dies:
            return self.team.wire
        hook: Callable[..., None] = let_others_act if is_interrupted else die
        if self.chance.random() < 0.5:
            client.before = hook
        else:
            client.after = hook
        return client
