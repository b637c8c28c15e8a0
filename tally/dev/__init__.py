"""The stack on one machine: `make dev`, or `python -m tally.dev`.

The subpackages, each of which imports only those above it:

    base/       the DynamoDB engine and its file, its wire protocol, the object store, options, errors
    stack/      what runs, as the declarations say, its tables, and the zygote that imports the code
    functions/  the workers that run the Lambda functions, the Invoke API, the functions' metrics
    streams/    the event source mappings at work
    gateway/    the HTTP API, and the pages under /dev

`server` serves a stack from all of them.

It runs what `contract/deployment.py` makes of the declarations, as the stack on AWS does: a test compares both. One
process imports the code and forks workers, which run any function, JSON in and JSON out. Changed code is imported by a
new process, which takes over if the code loads. A minute of the ledger lasts 3 s (`TALLY_MINUTE_S`), and schedules run
more often by the same factor. The pump does what event source mappings do: batches, windows, filters, bisecting,
partial failures, and retries without end. `PATCH /dev/mappings/rollup/receipts` disables a mapping. A request to a path
behind `/dev/lost` is served, and its answer is lost: `POST /dev/lost/videos/9f3a/plays` counts a play and hangs up.
"""
