"""Series: the accepted amount of each tally by the hour and by the day, exactly.

The other subpackages use:

    hours   `sum_up`: the sweep sums up the journal's segments into the hours of each tally
    read    `read_series`: the series of a tally, and the time up to which it is complete

The sweep sums up the journal's segments after they are judged. If the sweep stops, changes still count.
"""
