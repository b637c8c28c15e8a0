"""The stack on one machine: `make dev`, or `python -m tally.dev`.

The rooms, each of which imports only those above it:

    base/       the DynamoDB engine and its file, its wire protocol, the object store, options, errors
    stack/      what runs, as the declarations say, its tables, and the zygote that imports the code
    functions/  the workers that run the Lambda functions, the Invoke API, their metrics
    streams/    the event source mappings at work
    gateway/    the HTTP API, and the pages under /dev

`server` serves a stack from all of them.
"""
