"""Checks whether the items of a team's table can be counted: at synth, in `make dev`, and before a scan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

NEW_AND_OLD_IMAGES = "NEW_AND_OLD_IMAGES"
KeysByCounter = Mapping[str, tuple[str, str | None, bool]]
"""`partition_key`, `sort_key` and `needs_images` of `Items`, by the counter's name. `needs_images`: the keys
do not say what an item contributes, so the number moves by the difference between the old and the new image."""


def why_uncountable(keys: Sequence[str], view: str | None, counters: KeysByCounter) -> str:
    """Returns why these counters cannot count the items of a table; "" if they can. `keys`: the table's keys, the
    partition key first. `view`: the view type of its stream; None without a stream."""
    for name, (key, sort, _) in counters.items():
        named = [key, *([sort] if sort else [])]
        if named != list(keys[: len(named)]):
            return f"counter {name!r} names the keys {' and '.join(named)}, but the table has {' and '.join(keys)}"
    if view is None:
        return f"the table has no stream: give it a stream with {NEW_AND_OLD_IMAGES}"
    needing = [name for name, (*_, images) in counters.items() if images]
    if view == NEW_AND_OLD_IMAGES or not needing:
        return ""
    return f"the table's stream has {view}, and counter {needing[0]!r} needs {NEW_AND_OLD_IMAGES}"
