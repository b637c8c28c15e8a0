"""What the other subpackages share: a local DynamoDB (`Engine`), its client (`Wire`), S3 (`Buckets`), and `DevOptions`.

Tests and the bench use `Engine`, `free_port` and `LocalError` (an error that a person can fix), too.
"""
