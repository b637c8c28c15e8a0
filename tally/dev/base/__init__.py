"""The base of the other rooms: `Engine` is DynamoDB, `Objects` is S3, `Wire` calls the engine, `Options` configure.

Tests and the bench use `Engine`, `LocalError` and `free_port` too.
"""
