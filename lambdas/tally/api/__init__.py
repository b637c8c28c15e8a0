"""Events in, answers out: HTTP and direct invocations, checked, counted and answered.

The handlers use `entry` (`Entry`, `Answer`), `texts` (`Text`), `badge` and `crawlers`. `http` is this room's own.
"""
