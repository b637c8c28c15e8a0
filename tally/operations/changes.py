"""Many changes under one key: all of them count, or none does."""

import time
from typing import Annotated, Any, Literal, TypedDict

from tally import fields
from tally.api import needs
from tally.api.kinds import CHANGES, VISIBLE, Key
from tally.api.operation import SELDOM, Access, Answer, Call, operation
from tally.api.shapes import WhenVisible
from tally.counter import Counter
from tally.counting import changes as changes_
from tally.errors import CallerError, CounterRetiredError, InvalidInputError, LimitReachedError


class Changed(TypedDict):
    """All of the changes were counted: how many, and of how many numbers."""

    counted: Literal[True]
    changes: Annotated[int, {"minimum": 1}]
    tallies: Annotated[int, {"minimum": 1}]
    visible: WhenVisible


def _alone(counter: Counter) -> CallerError | None:
    """Why changes of this counter cannot be counted together with others."""
    alone = None if counter.joins else InvalidInputError(f"{counter.name} is changed alone.", field="changes")
    return fields.not_changed(counter) or alone


@operation(
    "POST /changes",
    access=Access.WRITE,
    throttle=SELDOM,
    refuses=_alone,
    needs=needs.change_together,
    raises=[LimitReachedError, CounterRetiredError],
    example={"counted": True, "changes": 2, "tallies": 2, "visible": "now"},
    counts=True,
    body_bytes_max=256 * 1024,  # 1,000 changes with the longest names, ids and amounts
)
def change(
    call: Call,
    *,
    changes: Annotated[list[dict[str, Any]], CHANGES],
    idempotency_key: Key,
    visible: Annotated[str, VISIBLE] = "now",
) -> Answer[Changed]:
    """Move many counters together

    All of the changes count, or none does. At a floor or ceiling Tally refuses all of them, names the entry, and says
    how much is left. A refusal leaves no receipt.
    """
    soon = visible == "soon"
    wanted = changes_.read(changes, call.counters, time.time(), soon=soon)
    body, replayed = changes_.count(call, wanted, operation="change", key=idempotency_key, soon=soon)
    return Answer(body, replayed=replayed)
