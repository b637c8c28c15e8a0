"""Drift: does each tally say what was counted, and if not, who repairs it?

The other rooms use:

    judge      `judge`: compares what was expected with what was observed, minute by minute
    rows       `listed`, `summary`: the tallies that drift
    reconcile  `Reconciler`: looks at a tally, and repairs it
    recount    `families`: the children of every tally, counted
    history    `read`: the repairs of a tally

Only `judge` and `reconcile` write drift rows, each on condition that the row is as it was read.
"""
