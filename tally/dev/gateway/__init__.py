"""API Gateway on this machine, and the local extras under /dev: tokens, pages, metrics. `site` serves everything."""
