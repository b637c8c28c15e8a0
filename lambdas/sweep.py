"""Gives back what expired holds have taken, on a schedule."""

from typing import Any

import counters
from tally import holds, observe
from tally.settings import Settings
from tally.store import Call, Store, dynamodb_client

_store = Store(dynamodb_client(), Settings.from_environment())


def handler(event: object, context: Any) -> dict[str, int]:
    """Sweep every bucket; how many holds had expired."""
    released = sum(holds.sweep(Call(_store), counters.COUNTERS, bucket) for bucket in range(holds.BUCKETS))
    observe.logger.info("swept", extra={"released": released})
    return {"released": released}
