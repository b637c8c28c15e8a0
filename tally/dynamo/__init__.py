"""The way to DynamoDB. Only this room and `records` call it; both raise the errors of `errors.py`, never botocore's.

client        Store (a process's client and settings), Call (one operation's deadline and nonce)
queries       strongly consistent reads: one item, some items, a page of a partition, all of it
transactions  writes: committed, retried while others are in the way, or refused
contention    which tallies are hot, how far they spread, how long to retry
team_writes    `check_team_writes`: the writes that a team adds to a transaction
items         writes that are made from Python values, on condition that nothing has changed
keys          keys of the items of the ledger table
"""
