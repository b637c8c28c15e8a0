"""The base of the other rooms: `Engine` is DynamoDB, `Objects` is S3, `Wire` calls the engine, `Options` configure.

Tests, the bench and the demo use `Engine`, `LocalError` and `free_port` too.
"""
