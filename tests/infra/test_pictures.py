"""The pictures of README.md, docs/tour.md and docs/console.md are those of this console and this dashboard."""

from __future__ import annotations

import json

from tests.infra.template import Template
from tests.make_pictures import MADE_OF, digests


def test_the_pictures_are_of_the_console_and_the_dashboard_as_they_are(dev: Template) -> None:
    assert json.loads(MADE_OF.read_text()) == digests(dev.dashboard()), "stale: run `make pictures`"
