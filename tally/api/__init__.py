"""Makes operations of functions: declarations, kinds of fields, and how an event gets an answer.

operation   `@operation`: a function, its routes, who may call it, what it needs and answers
kind        the class of field kinds: check, schema, description and example
kinds       the kinds of fields
needs       what an operation needs of the tables: roles grant exactly that
background  functions without callers: stream consumers and schedules
entry       the handler of a Lambda function: one event in, one answer out
http        HTTP API events and responses; `texts` makes the responses that caches keep
shapes      types that several answers share
"""
