"""The items of a team's own tables: Tally counts and recounts them, and compares the team's numbers with the counts.

consumer      counts the items from the stream
scan_state    the scans of a counter's items in the ledger; `as_of`
first_seen    which counted an item first while a scan is open: the stream, or the scan
scan_reader   reads the items of a table while the team writes, and adds them to a recount
recounts      compares numbers with a recount, and notes the difference or sets the numbers
scan_plan     predicts from a sample what a scan costs, and which items will not count
faults        how many items cannot be counted, with an example of each fault
health        the health check of the counters of items
spot_checks   the sweep recounts some groups
progress      how far the consumer has come in each table
team_numbers  what the consumer notes of a team's own number
watch         compares these numbers with the counts
"""
