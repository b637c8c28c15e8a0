"""Streams: records of the tables' streams take effect exactly once, and until when they provably have."""
