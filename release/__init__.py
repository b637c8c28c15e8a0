"""Makes the wheel: `make wheel`."""
