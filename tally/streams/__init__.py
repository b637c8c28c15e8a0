"""Stream consumers apply each record of the tables' streams exactly once. The watermark says how far they have come."""
