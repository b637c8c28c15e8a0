"""What Tally does: one file a capability, which is one Lambda function.

A file has the routes, the fields, the answers, the needs of the tables and the functions of its operations. `EVERY`
lists the files; `rollup`, `bookkeeper`, `items` and `sweep` are functions that nobody calls. A function imports its
own file only.
"""

SERVING = (
    "increments", "changes", "reads", "children", "holds", "posts", "visits", "receipts", "series", "drift", "console",
    "health",
)  # fmt: skip
"""The files that serve callers."""
CONSUMERS = ("rollup", "bookkeeper")
"""Those that read streams."""
ITEMS_CONSUMER = "items"
"""The one that reads the streams of the team's tables. It is there if a counter counts their items."""
SCHEDULES = ("sweep",)
"""Those that run every few minutes."""
