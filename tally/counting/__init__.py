"""Counting: one change or many, committed with the receipts that make each count once.

The other rooms use:

    increments          Increment and `count`, `set_value`: a change of a counter
    unique_visitors     `count`: a visitor, once in a period
    batch               `count`: many changes under one key
    voids               `void`: a change that is taken back
    children            `set_child`, `has_child`, `list_children`: items that a tally counts, such as likes
    holds               `place`, `release_expired_for`: an amount taken for a while
    settling            `settle`: a hold is committed, released or voided
    expired_holds       `sweep`: gives back what expired holds have taken
    posts               `read_post`, `write_post`
    deletion            `remove_parent`, and `sweep`: removes the likes of deleted posts
    receipts            `count_once`, `find_many`: an idempotency key counts once
    tallies             the reads of a tally, and the writes that move it

It calls `dynamo` and nothing above itself. A change goes through `receipts` and `dynamo.transactions`, never past them.
"""
