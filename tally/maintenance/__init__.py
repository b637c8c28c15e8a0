"""What only the command does to the numbers: no function imports it.

imports     numbers from elsewhere
forgetting  `find_traces`, `forget_trace`: what there is of a user, and its removal
reconcile   `Reconciler`: repairs of a tally, by an amount that is proven
losses      `acknowledge`: somebody knows of records that the streams may have lost
rebuild     a tally that is gone, from the journal
restored    restored tables, ready to count again
"""
