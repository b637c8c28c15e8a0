"""Counting: commits one change or many with the receipts that make each of them count once.

The other subpackages use:

    increments          Increment and `count`, `set_value`: changes one counter
    unique_visitors     `count`: counts a visitor once in a period
    batch               `count`: counts many changes under one key
    voids               `void`: takes an earlier change back
    children            `set_child`, `has_child`, `list_children`: items that a tally counts, such as likes
    holds               `place`, `expire_due_for`: takes an amount for a while
    hold_items          the states and keys of holds
    settling            `settle`: commits, releases or voids a hold
    expired_holds       `sweep`: releases expired holds
    posts               `read_post`, `write_post`
    deletion            `remove_parent`, and `sweep`: removes the likes of deleted posts
    receipts            `count_once`, `find_many`: an idempotency key counts once
    tallies             the reads of a tally, and the writes that move it

It imports `dynamo`, and no subpackage above itself. `dynamo.transactions` commits every change.
"""
