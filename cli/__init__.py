"""The command `tally`: looks at Tally's numbers and repairs them. `smoke` calls every operation of a deployed stack.

`__main__` finds the app and runs the command; `options` reads the command line, `connection` finds the tables,
`commands` and `repairs` do the work, and `terminal` prints.
"""
