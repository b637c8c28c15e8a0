"""`make demo`: a real web server's log, replayed against `make dev` and counted again."""
