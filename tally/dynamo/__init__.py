"""Calls DynamoDB. Only this subpackage and `records` do so. Both raise the errors of `errors.py`, never botocore's.

client        Store (a process's client and settings), Call (one operation's deadline and nonce)
queries       strongly consistent reads: one item, some items, a page of a partition, a whole partition
transactions  commits writes, and retries after conflicts and throttling
contention    which tallies are hot, over how many shards they spread, how long to retry
team_writes   checks the writes that a team adds to a transaction
items         makes writes from Python values, with the attributes that the item is expected to have
keys          keys of the items of the ledger table
"""
