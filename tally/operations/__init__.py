"""What Tally does: one file for each capability, which is one Lambda function.

A file has the routes, fields and answers of its operations, the access to tables that they need, and their Python
functions. `rollup`, `bookkeeper`, `items` and `sweep` are functions without callers. A function imports only its own
file.
"""

SERVING = (
    "increments", "changes", "reads", "children", "holds", "posts", "visits", "receipts", "series", "drift", "console",
    "health",
)  # fmt: skip
"""The functions that serve callers."""
CONSUMERS = ("rollup", "bookkeeper")
"""The functions that read the streams of Tally's tables."""
ITEMS_CONSUMER = "items"
"""The function that reads the streams of the team's tables. It exists only if a counter counts their items."""
SCHEDULES = ("sweep",)
"""The functions that run every few minutes."""
