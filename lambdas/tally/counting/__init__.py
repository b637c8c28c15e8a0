"""Counting: one change, a batch of changes, likes, posts and holds, each committed with its receipt."""
