"""Operations of the command `tally`. No Lambda function imports this subpackage.

imports     imports numbers and children from elsewhere
forgetting  `find_traces`, `forget_trace`: find a user's traces, and remove them
reconcile   `Reconciler`: repairs a tally by a proven amount
losses      `acknowledge`: records that somebody knows of a loss
rebuild     adds to tallies what the rollup lost, by the receipts
restored    repairs tables that were restored from a backup
"""
