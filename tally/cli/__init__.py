"""The command `tally`: reads and repairs Tally's numbers, runs Tally locally, and deploys it.

`__main__` finds the app and runs the command. `command_summaries` has one line of help for each command. The module of
a command declares a `command.Command`. `connection` finds the tables, `account` finds the AWS account, and `terminal`
prints. `smoke` is `make smoke`: it calls every operation of a deployed stack.
"""
