"""The parts of a Lambda context that handlers read."""

from __future__ import annotations

from dataclasses import dataclass

from tests.patience import PATIENCE_S


@dataclass(frozen=True)
class LambdaContext:
    """A context. `remaining_ms`: the time that the invocation has left."""

    remaining_ms: int = int(PATIENCE_S * 1000)
    aws_request_id: str = "11111111-2222-3333-4444-555555555555"

    def get_remaining_time_in_millis(self) -> int:
        return self.remaining_ms
