"""What the other subpackages share: the engine (`Engine`), its protocol (`Wire`), S3 (`Buckets`), and `DevOptions`.

Tests and the bench use `Engine`, `LocalError` and `free_port` too.
"""
