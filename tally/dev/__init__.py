"""The stack on one machine: `make dev`, or `python -m tally.dev`.

The rooms, each of which imports only those above it:

    base/       the DynamoDB engine and its file, its wire protocol, the object store, options, errors
    stack/      what runs, as the declarations say, its tables, and the zygote that imports the code
    functions/  the workers that run the Lambda functions, the Invoke API, their metrics
    streams/    the event source mappings at work
    gateway/    the HTTP API, and the pages under /dev

`server` serves a stack from all of them.

It runs what `contract/described.py` says of the declarations, as the stack does: a test compares both. One
process imports the code, and forks workers that run any function, JSON in and JSON out. Changed code gets another such
process, and takes over once it is right. A minute of the ledger lasts 3 s (`TALLY_MINUTE_S`), and schedules run as much
more often. The pump does what event source mappings do: batches, windows, filters, bisecting, partial failures, and
retries without end. `PATCH /dev/mappings/rollup/receipts` disables a mapping. `POST /dev/lost/videos/9f3a/plays` counts
a play and hangs up, as does any path behind `/dev/lost`: it shows what a client does if an answer is lost.
"""
