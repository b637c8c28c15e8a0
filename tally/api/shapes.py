"""Types that several answers share: members, and a number."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, TypedDict

Count = Annotated[int, {"minimum": 0}]
Seconds = Annotated[int, {"minimum": 0, "description": "Seconds since 1970."}]
Version = Annotated[
    int, {"minimum": 0, "description": "Every change increments the version. The `ETag` is the version in quotes."}
]
AsOf = Annotated[
    int | None,
    {"minimum": 0, "description": "Seconds since 1970. Numbers have every change before this time. Null: unknown."},
]
PeriodName = Annotated[str, {"description": "Of a counter with periods: the period, such as `2026-11`."}]
WhenVisible = Annotated[
    Literal["now", "soon"],
    {"description": "Reads show the change `now`, or `soon`: within seconds. It counts either way."},
]
NewValue = Annotated[
    int,
    {"description": "With `?value=true`, if visible now: the number after the change, strongly consistent."},
]


class Value(TypedDict):
    """A number. If it can be set, it has a version. If its changes are visible soon, it has `as_of`.

    With a ceiling or a floor, it has a `limit`, and how much is `left`.
    """

    counter: str
    id: str
    value: int
    period: NotRequired[PeriodName]
    version: NotRequired[Version]
    as_of: NotRequired[AsOf]
    about: NotRequired[
        Annotated[Literal[True], {"description": "`as_of` is approximate, as the team's table gets no heartbeats."}]
    ]
    limit: NotRequired[
        Annotated[int, {"description": "The present ceiling of this id, or its floor if it has no ceiling."}]
    ]
    left: NotRequired[
        Annotated[
            int,
            {"description": "The amount that still fits up to `limit`. Below 0: how far the number is beyond `limit`."},
        ]
    ]
    over: NotRequired[Annotated[Literal[True], {"description": "The number is beyond `limit`. `left` says how far."}]]
    resets_at: NotRequired[
        Annotated[
            int,
            {"minimum": 0, "description": "Of a counter with periods: when the period ends, in seconds since 1970."},
        ]
    ]


class Unreadable(TypedDict):
    """A number that cannot be read, and why."""

    counter: str
    id: str
    error: Annotated[dict[str, Any], {"$ref": "#/components/schemas/problem"}]
