"""The time by DynamoDB's clock, which every process of a deployment shares.

A process's own clock may be wrong, and the clocks of two processes may differ. Each answer of DynamoDB has the time in
its header `Date`. So each answer corrects the process's time, and no clock needs a request of its own.

Before its first answer a process uses its own clock. AWS limits the error of that clock, because each request has a
signature with a time: "In most cases, a request must reach AWS within five minutes of the time stamp" (IAM User Guide,
"Signature Version 4"). The engines of the tests and of `make dev` check no signature.
"""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import UTC
from email.utils import parsedate_to_datetime

NODE_DIFFERENCE_S = 1.0  # by which the clocks of two nodes of DynamoDB may differ
DATE_ROUNDING_S = 1.0  # `Date` has whole seconds, rounded down
CLOCK_DIFFERENCE_S_MAX = 15 * 60
"""By so much two processes' clocks may differ before an answer: each may be wrong by 5 minutes, and 5 are a margin."""


class Clock:
    """The clock of this process, corrected by DynamoDB's answers.

    `ahead_s`: by so much at least the clock is ahead; negative if the clock is behind; 0 if no answer shows an error.
    """

    ahead_s = 0.0

    def now_s(self) -> float:
        """Returns the time by DynamoDB's clock, epoch seconds."""
        return time.time() - self.ahead_s

    def forget(self) -> None:
        """Forgets the correction, because the process runs on another machine now."""
        self.ahead_s = 0.0

    def correct_by(self, date: str, sent_s: float) -> None:
        """Corrects the clock by an answer. `sent_s`: when the request was sent, by the process's own clock.

        DynamoDB wrote `date` between the request and this moment. So a slow answer proves less, and corrects less. A
        date that cannot be read corrects nothing.
        """
        with suppress(TypeError, ValueError, OverflowError):
            server_time = parsedate_to_datetime(date)
            # A date without a zone is UTC.
            date_s = (server_time if server_time.tzinfo else server_time.replace(tzinfo=UTC)).timestamp()
            ahead_s = max(0.0, sent_s - date_s - DATE_ROUNDING_S - NODE_DIFFERENCE_S)
            self.ahead_s = ahead_s + min(0.0, time.time() - date_s + NODE_DIFFERENCE_S)


CLOCK = Clock()
now_s = CLOCK.now_s
