"""Where the files are that are no modules: the handlers' sources, what browsers load, and the settings of `cdk`.

`HOME` is the checkout. In an installed package it is the folder `_home`, which has the same files in the same places
(release/build.py). In a deployed bundle there is none: what handlers serve lies beside them.
"""

from __future__ import annotations

from pathlib import Path

_ABOVE = Path(__file__).resolve().parents[1]
_PACKAGED = _ABOVE / "_home"

HOME = _PACKAGED if _PACKAGED.is_dir() else _ABOVE
LAMBDAS = HOME / "lambdas"
CLIENT = HOME / "clients" / "js"
UPLOT = HOME / "node_modules" / "uplot"
PACKAGES = HOME / "packages"
"""What a wheel brings for the deployed functions. A checkout has none, and installs them as they are pinned."""
TEMPLATE = HOME / "template"
"""The stack of the shipped counters, as `tally dev` reads it. A checkout has none, and synthesizes its own."""
