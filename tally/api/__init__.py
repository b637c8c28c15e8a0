"""What makes operations of functions: declarations, kinds of fields, events in and answers out, the API document.

operation  `@operation`: a function, its route, who may call it, what it needs and answers
kinds      the kinds of fields: each has its check, its schema, its words and its example
needs      what an operation needs of the tables: roles grant exactly that
entry      the handler of a Lambda function: one event in, one answer out
http       HTTP API events and responses; `texts` are those that caches keep
schemas    JSON Schema of an answer's type
document   the OpenAPI document
client     makes the typed client of the operations
"""
