"""The base of the other rooms: `Engine` is DynamoDB, `Buckets` is S3, `Wire` calls the engine, `DevOptions` configure.

Tests and the bench use `Engine`, `LocalError` and `free_port` too.
"""
