"""The stream consumer that books what is expected and observed of each tally."""

import counters
from tally import drift
from tally.streams import Handler

handler = Handler(drift.CONSUMER, counters.COUNTERS)
