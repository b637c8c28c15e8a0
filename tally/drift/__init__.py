"""Drift: finds tallies that differ from the accepted changes, and lists them."""
