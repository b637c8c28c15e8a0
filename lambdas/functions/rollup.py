"""The stream consumer that adds up what was written alone."""

import counters
from tally.streams import rollup
from tally.streams.consumer import Handler

handler = Handler(rollup.CONSUMER, counters.COUNTERS)
