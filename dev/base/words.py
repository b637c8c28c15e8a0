"""What people type to have a stack on their machine: a checkout has make, who installed the package has the command."""

DEV = "`tally dev`" if (__package__ or "").startswith("tally.") else "`make dev`"
