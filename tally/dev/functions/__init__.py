"""Lambda on this machine: `Pool` runs a function's processes, `Invoke` is the Invoke API, `Metrics` reads the logs."""
