"""The pictures of README.md and docs/ show the console and the dashboard as they are."""

from __future__ import annotations

import json

import pytest

from tests.infra.conftest import ROOT
from tests.infra.template import Template
from tests.make_pictures import DIGESTS, FOLDER, PICTURES, digests

BYTES_MAX = 150_000


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_small_and_has_a_text_for_people_who_cannot_see_it(name: str) -> None:
    picture = (FOLDER / name).read_bytes()
    assert (picture[:4], picture[8:12]) == (b"RIFF", b"WEBP")
    assert len(picture) <= BYTES_MAX
    pages = "".join(page.read_text() for page in (ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))))
    before, link, _ = pages.replace("](pictures/", "](docs/pictures/").partition(f"](docs/pictures/{name})")
    assert link
    assert len(before.rpartition("![")[2]) > 40


def test_the_pictures_show_the_console_and_the_dashboard_as_they_are(dev: Template) -> None:
    assert json.loads(DIGESTS.read_text()) == digests(dev.dashboard()), "stale: run `make pictures`"
