"""Tally: it turns a change into a number in DynamoDB, once.

Import the modules at the top: `client`, `errors`, `counter`, `pages`, `settings`, `observe`, `fields`, `builtin`; `cdk`
for a stack, `records` for a table of your own. docs/internals.md shows the subpackages.
"""
