"""The stream consumer that adds up what was written alone."""

import counters
from tally import rollup
from tally.streams import Handler

handler = Handler(rollup.CONSUMER, counters.COUNTERS)
