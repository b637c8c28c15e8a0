"""The command `tally`: looks at Tally's numbers and repairs them. `smoke` calls every operation of a deployed stack.
`deploy` and `destroy` are `make deploy` and `make destroy`; `account` finds where they act.

`__main__` finds the app and runs the command; `commands` lists them; each has a module of its own with its name, help,
arguments, checks and function (`command.Command`). `connection` finds the tables, and `terminal` prints.
"""
