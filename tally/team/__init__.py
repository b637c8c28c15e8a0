"""The items of a team's own tables: counted as they are written, counted again, and numbers that the team keeps itself.

consumer      counts the items as the stream shows them
scan_state    the scans of a counter's items, as the ledger has them; `as_of`
first_seen    who began with an item while a scan is open: the stream, or the scan
scan_reader   reads the items of a table while the team writes, and adds them to a recount
recounts      compares numbers with a recount, and notes the difference, or sets them
scan_plan     what a scan will take, and what will not count, from a sample
faults        how many items cannot be counted, and one of each fault
health        whether all is well with the counters of items
spot_checks   the sweep counts some groups again
progress      how far the consumer has come in each table
team_numbers  what is noted of a number that the team keeps itself
watch         holds these numbers against the counts
"""
