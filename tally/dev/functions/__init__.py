"""Lambda on this machine: `Workers` run the functions, `Invoke` is the Invoke API, `Metrics` reads metrics in logs."""
