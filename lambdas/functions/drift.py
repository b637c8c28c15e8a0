"""The stream consumer that books what is expected and observed of each tally."""

import counters
from tally.streams import bookkeeper
from tally.streams.consumer import Handler

handler = Handler(bookkeeper.CONSUMER, counters.COUNTERS)
