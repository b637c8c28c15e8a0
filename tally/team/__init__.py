"""The items of a team's own tables: counted as they are written, counted again, and numbers that the team keeps itself.

consumer      counts the items as the stream shows them
scan_state    the scans of a counter's items, as the ledger has them; `as_of`
first_seen    who began with an item while a scan is open: the stream, or the scan
recounts      counts the items of a table while the team writes, and compares the numbers with that, or sets them
spot_checks   the sweep counts some groups again
progress      how far the consumer has come in each table
kept_numbers  what is noted of a number that the team keeps itself
watch         holds these numbers against the counts
"""
