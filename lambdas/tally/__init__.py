"""The counting core: it turns a change into a number in DynamoDB, once.

Import the modules at the top: `client`, `requests`, `errors`, `counter`, `operation`, `settings`, `observe`, `fields`,
`shipped`. The rooms:

    dynamo/    the way to DynamoDB: the client, transactions, contention, queries, keys
    counting/  one change, many changes, receipts, children, posts, holds
    streams/   stream records applied exactly once
    drift/     the judge, the drift rows, repairs
    api/       HTTP and direct events in and out
    records/   records with atomic counters
"""
