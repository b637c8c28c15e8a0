"""`make demo`: replays a real web server's log as visits, retries some visits, and compares with the log's own count.

`replay` runs the demo, `report` prints the result, `weblog` reads the log, and `visitors` sends the requests.
"""
