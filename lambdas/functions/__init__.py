"""The handlers: one module for each Lambda function. They parse, call `tally`, and answer; none imports another."""
