"""Streams: records of the tables' streams take effect exactly once.

The other rooms use:

    consumer    `Handler`: a Lambda function that applies batches
    rollup      CONSUMER: adds to tallies what was written alone
    bookkeeper  CONSUMER: books what is expected and observed of each tally
    set_aside   `listed`, `redrive`: records that could not be applied
    progress    how far the consumers have come: `as_of`, `horizon`, `pulse`

`record`, `broken` and `fold` are this room's own: pure functions from records to effects.
"""
