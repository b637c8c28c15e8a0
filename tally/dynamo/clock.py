"""The time by DynamoDB's clock, which is the same for every process of a deployment.

A process's own clock may be wrong, and the clocks of two processes may differ. Each answer of DynamoDB has the time in
its header `Date`. So each answer corrects the process's clock, without a request for this purpose.

Before the first answer, a process uses its own clock. AWS limits the error of that clock, because each request has a
signature with a time: "In most cases, a request must reach AWS within five minutes of the time stamp" (IAM User Guide,
"Signature Version 4"). The engines of the tests and of `make dev` check no signature.
"""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import UTC
from email.utils import parsedate_to_datetime

NODE_DIFFERENCE_S = 1.0  # by how much the clocks of two nodes of DynamoDB may differ
DATE_ROUNDING_S = 1.0  # `Date` has whole seconds, rounded down
CLOCK_DIFFERENCE_S_MAX = 15 * 60
"""How much the clocks of two processes without an answer may differ: each is wrong by up to 5 minutes, and 5 minutes
are a margin."""


class Clock:
    """The clock of this process, corrected by DynamoDB's answers. `ahead_s`: by how much at least the process's own
    clock is ahead; negative if it is behind; 0 if no answer shows an error."""

    ahead_s = 0.0

    def now_s(self) -> float:
        """Returns the time by DynamoDB's clock, epoch seconds."""
        return time.time() - self.ahead_s

    def forget(self) -> None:
        """Forgets the correction. Call this when the process continues on another machine."""
        self.ahead_s = 0.0

    def correct_from(self, date: str, sent_s: float) -> None:
        """Corrects the clock by an answer. `sent_s`: when the request was sent, by the process's own clock.

        DynamoDB wrote `date` between `sent_s` and now. The clock is wrong for certain only if `date` lies outside of
        this time, so a slow answer corrects less. A `date` that cannot be parsed corrects nothing.
        """
        with suppress(TypeError, ValueError, OverflowError):
            server_time = parsedate_to_datetime(date)
            # A date without a zone is UTC.
            date_s = (server_time if server_time.tzinfo else server_time.replace(tzinfo=UTC)).timestamp()
            ahead_s = max(0.0, sent_s - date_s - DATE_ROUNDING_S - NODE_DIFFERENCE_S)
            self.ahead_s = ahead_s + min(0.0, time.time() - date_s + NODE_DIFFERENCE_S)


CLOCK = Clock()
now_s = CLOCK.now_s
