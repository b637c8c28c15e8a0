"""Tally: counts each change once, in DynamoDB.

Import only the modules at the top, such as `counter`, `errors`, `transact`; `client` to call Tally, `cdk` for a stack,
`records` for a table of your own. docs/internals.md shows the other subpackages.
"""
