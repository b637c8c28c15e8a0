"""Streams: records of the tables' streams take effect exactly once.

The other rooms use:

    consumer    `Handler`: a Lambda function that applies batches
    rollup      CONSUMER: adds to tallies what was written alone
    bookkeeper  CONSUMER: books what is expected and observed of each tally, on pages
    pages       the journal: `read`, `sums`, `pairs`
    evidence    until when the consumers have passed everything: `read`, `renew`, `as_of`
    set_aside   `listed`, `any_left`, `redrive`: records that could not be applied

`record`, `broken` and `fold` are this room's own: pure functions from records to effects. So are `lineage`, which
knows the shards and their checkpoints, and `waits`, the ledger's waits.
"""
