"""`make demo`: replays a real web server's log as visits, retries some of them, and counts the log itself.

`replay` runs it and `report` prints it; `weblog` reads the log, `visitors` speaks HTTP.
"""
