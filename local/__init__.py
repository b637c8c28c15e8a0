"""The stack on one machine: `python -m local`, for people `make dev`.

The rooms, each of which uses only those above it:

    base/       the DynamoDB engine, its wire, the object store, the options, errors
    stack/      the synthesized template, read; its tables
    functions/  the processes of the Lambda functions, their Invoke API, their metrics
    streams/    the event source mappings at work
    gateway/    the HTTP API and the pages under /dev
"""
