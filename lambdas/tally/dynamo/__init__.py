"""The way to DynamoDB: client, reads, transactions, retries. Only this room and `records` call it."""
