"""What a table of the team's must be, so that its items can be counted: at synth, and in `make dev`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

NEW_AND_OLD_IMAGES = "NEW_AND_OLD_IMAGES"
KeysByCounter = Mapping[str, tuple[str, str | None, bool]]
"""By the names of counters: partition and sort key as `Items` name them, and whether keys alone do not say what an item
counts for. Then both images are needed: the number moves by the difference."""


def why_uncountable(keys: Sequence[str], view: str | None, counters: KeysByCounter) -> str:
    """Why these counters cannot count the items of a table; empty if they can.

    `keys`: the names of its keys, the partition key first. `view`: the view type of its stream; None: it has none.
    """
    for name, (key, sort, _) in counters.items():
        named = [key, *([sort] if sort else [])]
        if named != list(keys[: len(named)]):
            return f"counter {name!r} names the keys {' and '.join(named)}, and it has {' and '.join(keys)}"
    if view is None:
        return f"it has no stream: give it one with {NEW_AND_OLD_IMAGES}"
    needing = [name for name, (*_, images) in counters.items() if images]
    if view == NEW_AND_OLD_IMAGES or not needing:
        return ""
    return f"its stream has {view}, and counter {needing[0]!r} needs {NEW_AND_OLD_IMAGES}"
