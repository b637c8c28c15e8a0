"""What people type to have a stack on their machine: a checkout has make, who installed the package has the command."""

from tally.home import IN_A_WHEEL

DEV = "`tally dev`" if IN_A_WHEEL else "`make dev`"
