"""The stack on one machine: `make dev`, or `python -m tally.dev`.

The subpackages. Each imports only subpackages above it:

    base/       the DynamoDB engine and its file, its wire protocol, the object store, options, errors
    stack/      the description of the stack, its tables, and the zygote: the process that imports the code
    functions/  the workers that run the Lambda functions, the Invoke API, the functions' metrics
    streams/    the pump, which delivers stream records to functions, as event source mappings do
    gateway/    the HTTP API, and the pages under /dev

`server` starts and stops all parts of a stack together.

`contract/deployment.py` derives the stack from the declarations, here and on AWS. A test compares the two stacks. The
zygote imports the code and forks workers. A worker can run any function; events and answers are JSON. After a change
of the code, a new zygote imports the code, and replaces the old zygote if the code loads. A minute of the ledger lasts
3 s (`TALLY_MINUTE_S`), and schedules run more often by the same factor. The pump has batches, windows, filters,
bisecting, partial failures, and retries without end. `PATCH /dev/mappings/rollup/receipts` disables a mapping. The
server runs a request for the path after `/dev/lost`, and sends no answer: `POST /dev/lost/videos/9f3a/plays` counts a
play, and closes the connection.
"""
