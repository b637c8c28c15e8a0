"""Whether the counters are declared in the forms in which they have counted on an engine."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from tally.contract.declarations import Declarations
from tally.dynamo.client import Store
from tally.errors import ConfigurationError, TallyError
from tally.settings import Settings
from tally.streams import forms

from ..base.errors import LocalError
from . import tables


def check(counters: Path, names: Mapping[str, str | None], endpoint: str) -> None:
    """Raise LocalError if one is not. `names`: the tables', by the names that Tally uses."""
    variables = {f"TALLY_{name.upper()}_TABLE": str(table) for name, table in names.items()}
    try:
        declared = Declarations.load(counters).counters
    except ConfigurationError:
        return  # the synthesis says why it does not load
    try:
        with closing(tables.client(endpoint)) as client:
            forms.check(forms.noted(Store(client, Settings.from_environment(variables))), declared)
    except TallyError as error:
        raise LocalError(f"{error}, or begin with other data (TALLY_DATA)") from None
