"""Series: what was accepted of each tally, by the hour and by the day, to the last unit.

The other rooms use:

    hours   `sum_up`: the sweep sums up the journal's segments into the hours of each tally
    read    `read_series`: the series of a tally, and as of when it is complete

It reads the journal's segments after they are judged. Nothing else depends on it: it may stand still, and numbers do
not.
"""
