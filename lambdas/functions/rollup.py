"""The stream consumer that adds changes to tallies which were written without them."""

import counters
from tally.streams import rollup
from tally.streams.consumer import Handler

handler = Handler(rollup.CONSUMER, counters.COUNTERS)
