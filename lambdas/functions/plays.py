"""Plays of a video."""

import operations
from tally.api.entry import Answer, Entry
from tally.counting import tallies
from tally.counting.increments import Increment
from tally.dynamo.client import Call
from tally.shipped import PLAYS


def play(call: Call, *, video_id: str, idempotency_key: str, value: bool = False) -> Increment:
    """Count one play, once for each key."""
    body = {"video_id": video_id, "counted": True}
    return Increment(PLAYS, video_id, 1, operations.PLAY.name, idempotency_key, body, shows_value=value)


def get_plays(call: Call, *, video_id: str) -> Answer:
    """How many plays the video has."""
    return Answer({"video_id": video_id, "play_count": tallies.read(call, PLAYS, video_id)}, max_age_s=PLAYS.kept_s)


handler = Entry({operations.PLAY: play, operations.GET_PLAYS: get_plays})
