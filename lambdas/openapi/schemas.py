"""JSON Schemas of successful answers, by name.

They are open, so that clients keep working when an answer gains a field. Tests close them before they compare.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import operations
from tally.counter import NOW, SOON
from tally.counting import holds

from .answers import KEPT

Schema = dict[str, Any]
_TEXT: Schema = {"type": "string"}
_WHOLE: Schema = {"type": "integer"}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_YES_NO: Schema = {"type": "boolean"}
_YES: Schema = {"const": True}
_SECONDS: Schema = {"type": "integer", "minimum": 0, "description": "Seconds since 1970."}


def _object(description: str, optional: Mapping[str, Schema] | None = None, /, **properties: Schema) -> Schema:
    made: Schema = {"description": description, "type": "object", "properties": {**properties, **(optional or {})}}
    return made | {"required": list(properties)}


def _reference(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _receipt(**more: Schema) -> Schema:
    """Whether a change was counted; with the properties `more`."""
    asked: dict[str, Schema] = {**more, "operation": {"enum": list(operations.WITH_RECEIPTS)}, "target": _TEXT}
    counted = _object(
        "The change was counted. `answer` is the answer of that time.",
        **asked, state={"const": "counted"}, answer={"anyOf": [_reference(name) for name in KEPT]},
    )  # fmt: skip
    unknown = _object(
        "No receipt: the change was never sent, was refused, or is older than receipts live.",
        **asked, state={"const": "unknown"},
    )  # fmt: skip
    return {"description": "Whether a change was counted.", "oneOf": [counted, unknown]}


_STATES = [holds.COMMITTED, holds.RELEASED, holds.EXPIRED]
_NUMBERED: dict[str, Schema] = {
    "number": {**_WHOLE, "description": "Of a numbered counter: the number that only this change took."},
    "last": {**_YES_NO, "description": "Of a numbered counter: whether no number is left after it."},
}
_VERSION: Schema = {**_COUNT, "description": "Every change increments it. It is the `ETag`, without the quotes."}
_VISIBLE: Schema = {
    "enum": ["now", "soon"],
    "description": "When reads show the change: `now`, or `soon`, which is within seconds. It is counted either way.",
}
_AS_OF: Schema = {
    "type": ["integer", "null"],
    "minimum": 0,
    "description": "Seconds since 1970. The number holds every change before this time. Null: not known yet.",
}
_SINCE: Schema = {
    "type": ["integer", "null"],
    "minimum": 0,
    "description": "Seconds since 1970. Null: it did not go through Tally.",
}
_PERIOD: dict[str, Schema] = {
    "period": {**_TEXT, "description": "Of a counter with periods: which one, such as `2026-11`."}
}
_VALUE: dict[str, Schema] = {
    "value": {
        **_WHOLE,
        "description": "With `?value=true`, unless the change is visible soon: what a strongly consistent read said"
        " right after it. Changes that are visible soon, and some that raced with the read, may be missing.",
    }
}
_DRIFT: dict[str, Schema] = {"drift": _WHOLE, "since": _SECONDS, "confirmed": _YES_NO}
_JUDGED: Schema = {
    "type": ["integer", "null"],
    "minimum": 0,
    "description": "Seconds since 1970. Every change before this time is judged. Null: nothing is judged.",
}
_LIMIT: Schema = {"type": ["integer", "null"]}
_OF_COUNTER: dict[str, Schema] = {"counter": _TEXT, "id": _TEXT}
_OF_CHILD: dict[str, Schema] = {**_OF_COUNTER, "child": _TEXT}
SCHEMAS: dict[str, Schema] = {
    "play": _object("A play was counted.", _VALUE, video_id=_TEXT, counted=_YES, visible=_VISIBLE),
    "plays": _object("How often a video was played.", video_id=_TEXT, play_count=_COUNT),
    "post": _object(
        "A post. `likeTally` is the sum over its shards; `revision` counts edits.",
        post_id=_TEXT, authorId=_TEXT, createdAt=_SECONDS, revision=_COUNT, likeTally=_COUNT, body=_TEXT,
    ),
    "deleted_post": _object(
        "The post is deleted. `changed`: by this request, and not by an earlier one.",
        post_id=_TEXT, deleted=_YES, changed=_YES_NO,
    ),
    "like": _object(
        "Whether you like the post now, and whether this request changed that.",
        _VALUE,
        post_id=_TEXT, liked=_YES_NO, changed=_YES_NO, visible=_VISIBLE,
    ),
    "like_state": _object("Whether you like the post.", post_id=_TEXT, liked=_YES_NO, changed={"const": False}),
    "likes": _object(
        "Who likes a post, in the order of their ids. `cursor` is null on the last page.",
        post_id=_TEXT,
        likes={"type": "array", "items": _object("One like.", user_id=_TEXT, likedAt=_SINCE)},
        cursor={"type": ["string", "null"]},
    ),
    "my_likes": _object(
        "Which of the posts you like, in the order asked.",
        likes={"type": "array", "items": _object("One post.", post_id=_TEXT, liked=_YES_NO)},
    ),
    "series": _object(
        "By how much a tally moved in each hour or day. `from` is when the hour or the day begins.",
        **_OF_COUNTER,
        by={"enum": ["hour", "day"]},
        series={"type": "array", "items": _object("One point.", **{"from": _SECONDS}, value=_WHOLE)},
        repairs={
            "type": "array",
            "items": _object("A repair. It is not in the series.", at=_SECONDS, value=_WHOLE, how=_TEXT),
        },
        since={**_AS_OF, "description": "Seconds since 1970. The series begins here. Null: it has not begun yet."},
        as_of=_AS_OF,
    ),
    "top": _object(
        "The tallies that moved most, the first one first.",
        counter=_TEXT,
        by={"enum": ["hour", "day", "month"]},
        span={"type": ["string", "null"], "description": "In UTC. Null: nothing is folded yet."},
        top={"type": "array", "items": _object("One tally.", id=_TEXT, value={"type": "integer", "minimum": 1})},
        error_max={**_COUNT, "description": "By how much a value may be too low or too high, at most."},
        as_of=_AS_OF,
    ),
    "drift": _object(
        "The tallies that drift now. `cursor` is null on the last page.",
        drift={
            "type": "array",
            "items": _object(
                "One tally: how far it is above the counted number, since when (seconds since 1970), and whether that"
                " is confirmed: it has stood for five minutes that Tally has judged.",
                _PERIOD, **_OF_COUNTER, **_DRIFT,
            ),
        },
        cursor={"type": ["string", "null"]},
    ),
    "details": _object(
        "One tally. `drift` is null if it does not drift.",
        _PERIOD,
        **_OF_COUNTER,
        value=_WHOLE,
        shards={"type": "array", "items": _object("One shard.", shard=_COUNT, value=_WHOLE)},
        drift={"oneOf": [{"type": "null"}, _object("How far it is off, as `GET /drift` says it.", **_DRIFT)]},
        judged_up_to=_JUDGED,
        repairs={
            "type": "array",
            "items": _object(
                "One repair: by how much, by what watermark, by whom and why.",
                at=_SECONDS, amount=_WHOLE, how=_TEXT, who=_TEXT, why=_TEXT,
            ),
        },
    ),
    "status": _object(
        "Whether all is well. `where`: the options that lead the command `tally` to this stack.",
        well={
            "type": ["boolean", "null"],
            "description": "True: every part is. False: one is wrong. Null: nobody can tell of some part.",
        },
        parts={
            "type": "array",
            "items": _object("One part.", name=_TEXT, state={"enum": ["ok", "wrong", "unknown"]}, line=_TEXT),
        },
        at=_SECONDS, as_of=_AS_OF, judged_up_to=_JUDGED, stack=_TEXT, stage=_TEXT, where=_TEXT,
        counters={
            "type": "array",
            "items": _object(
                "One counter. `public`: anyone may read it. `children`: it counts items. The others are as declared.",
                name=_TEXT, visible={"enum": [NOW, SOON]}, public=_YES_NO,
                pages=_YES_NO, children=_YES_NO, retired=_YES_NO, numbered=_YES_NO,
                max_shards={"type": "integer", "minimum": 1}, delta=_LIMIT, start=_WHOLE, floor=_LIMIT, ceiling=_LIMIT,
                period={"type": ["string", "null"]},
            ),
        },
    ),
    "visit": _object("A visit was counted.", counted=_YES, visible=_VISIBLE),
    "visits": _object(
        "How often a page was visited, by its normalised URL.",
        url=_TEXT, visits=_COUNT, bot_visits=_COUNT, as_of=_AS_OF,
    ),
    "increment": _object(
        "The change was counted.",
        {**_NUMBERED, **_PERIOD, **_VALUE}, **_OF_COUNTER, counted=_YES, visible=_VISIBLE,
    ),
    "changed": _object(
        "All of the changes were counted: how many, and of how many tallies.",
        counted=_YES, changes={"type": "integer", "minimum": 1}, tallies={"type": "integer", "minimum": 1},
        visible=_VISIBLE,
    ),
    "value": _object(
        "The value of a counter; with a version if it has compare-and-set, with `as_of` if it is rolled up.",
        {"version": _VERSION, "as_of": _AS_OF, **_PERIOD},
        **_OF_COUNTER, value=_WHOLE,
    ),
    "tallies": _object(
        "Numbers, in the order asked. Each is read by itself: they are no snapshot of one moment.",
        tallies={
            "type": "array",
            "items": {
                "oneOf": [
                    _object(
                        "One number; `as_of` if it is rolled up.",
                        {"as_of": _AS_OF, **_PERIOD}, **_OF_COUNTER, value=_WHOLE,
                    ),
                    _object("One that cannot be read, and why.", **_OF_COUNTER, error=_reference("problem")),
                ]
            },
        },
    ),
    "set_value": _object("The value was set.", **_OF_COUNTER, value=_WHOLE, version=_VERSION),
    "changed_child": _object(
        "Whether the child counts now, and whether this request changed that.",
        **_OF_CHILD, counted=_YES_NO, changed=_YES_NO, visible=_VISIBLE,
    ),
    "child": _object("Whether the child counts.", **_OF_CHILD, counted=_YES_NO),
    "children": _object(
        "The children, in the order of their percent-encoded names. `cursor` is null on the last page.",
        **_OF_COUNTER,
        children={"type": "array", "items": _object("One child.", child=_TEXT, since=_SINCE)},
        cursor={"type": ["string", "null"]},
    ),
    "hold": _object(
        "The amount is taken, and held until `expires_at`.",
        **_OF_COUNTER, hold_id=_TEXT, amount={"type": "integer", "minimum": 1}, expires_at=_SECONDS,
    ),
    "settled_hold": _object(
        "The state of a hold, and whether this request changed it.",
        **_OF_COUNTER, hold_id=_TEXT, state={"enum": _STATES}, changed=_YES_NO,
    ),
    "receipt": _receipt(),
    "receipts": _object(
        "Whether each change was counted, in the order of the request.",
        receipts={"type": "array", "items": _receipt(key=_TEXT)},
    ),
    "health": _object(
        "Tally reaches its store.",
        status={"const": "ok"}, version=_TEXT,
        receipts_live_s={
            "description": "For how many seconds at least Tally recognises a key, by counter. A counter that leaves no"
            " receipts is not there.",
            "type": "object",
            "additionalProperties": {"type": "integer", "minimum": 1},
        },
    ),
    "console_config": _object(
        "What the console knows of its stack.",
        stage=_TEXT, stack=_TEXT, region=_TEXT, try_it=_YES_NO,
        sign_in=_object(
            "How people sign in. With `pkce`: where, as which client, and the address that the browser comes back to.",
            dict.fromkeys(("domain", "client_id", "redirect"), _TEXT),
            kind={"enum": ["pkce", "token", "name"]},
        ),
    ),
    "openapi": _object(
        "This document.", {name: {} for name in ("servers", "tags", "components")},
        openapi={"type": "string", "pattern": "^3\\.1\\."}, info={"type": "object"}, paths={"type": "object"},
    ),
}  # fmt: skip


def versioned(name: str) -> bool:
    """Whether these answers have a counter's version, which HTTP also sends as the `ETag`."""
    return bool(SCHEMAS.get(name, {}).get("properties", {}).get("version") == _VERSION)
