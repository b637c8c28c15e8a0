"""The counting core: how a change becomes a number in DynamoDB, once.

Start at `tallies.py` (count and read) and `likes.py`; both write through `commit.py`,
and a change with an idempotency key goes through `receipts.py`. The words are defined in docs/how-it-works.md.
"""
