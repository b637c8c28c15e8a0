"""The command `tally`: looks at Tally's numbers and repairs them. `smoke` calls every operation of a deployed stack.
`deploy` and `destroy` are `make deploy` and `make destroy`; `account` finds where they act.

`__main__` finds the app and runs the command; `options` reads the command line, `connection` finds the tables,
`commands`, `repairs`, `restore`, `forget` and `status` do the work, and `terminal` prints.
"""
