"""What people type to have a stack on their machine: a checkout has make, who installed the package has the command."""

from tally.paths import IS_WHEEL

DEV = "`tally dev`" if IS_WHEEL else "`make dev`"
