"""What several answers have in common: facts about members, and a number."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, TypedDict

Count = Annotated[int, {"minimum": 0}]
Seconds = Annotated[int, {"minimum": 0, "description": "Seconds since 1970."}]
Version = Annotated[
    int, {"minimum": 0, "description": "Every change increments it. It is the `ETag`, without the quotes."}
]
AsOf = Annotated[
    int | None,
    {
        "minimum": 0,
        "description": "Seconds since 1970. The number holds every change before this time. Null: not known yet.",
    },
]
PeriodName = Annotated[str, {"description": "Of a counter with periods: which one, such as `2026-11`."}]
WhenVisible = Annotated[
    Literal["now", "soon"],
    {"description": "When reads show the change: `now`, or `soon`, which is within seconds. It counts either way."},
]
NewValue = Annotated[
    int,
    {
        "description": "With `?value=true`, of a change that is visible now: what a strongly consistent read said right"
        " after the change."
    },
]


class Value(TypedDict):
    """A number; with a version if it has compare-and-set, with `as_of` if its changes are visible soon.

    A counter with a ceiling or a floor says its `limit`, and how much is `left`.
    """

    counter: str
    id: str
    value: int
    period: NotRequired[PeriodName]
    version: NotRequired[Version]
    as_of: NotRequired[AsOf]
    about: NotRequired[Annotated[Literal[True], {"description": "Of a counter of items: `as_of` is about that time."}]]
    limit: NotRequired[
        Annotated[int, {"description": "The ceiling of this id, as changes are judged now; without one, its floor."}]
    ]
    left: NotRequired[
        Annotated[int, {"description": "How much more it takes, up to `limit`. Below 0: it is so far beyond it."}]
    ]
    over: NotRequired[Annotated[Literal[True], {"description": "It is beyond `limit`: `left` says how far."}]]
    resets_at: NotRequired[
        Annotated[int, {"minimum": 0, "description": "Of a counter with periods: when this one ends, as `as_of`."}]
    ]


class Unreadable(TypedDict):
    """A number that cannot be read, and why."""

    counter: str
    id: str
    error: Annotated[dict[str, Any], {"$ref": "#/components/schemas/problem"}]
