"""The script as it is deployed: small, and without what would keep something of a visitor."""

from __future__ import annotations

import gzip
import re
import subprocess

from operations import visits

DEPLOYED = visits._SCRIPT.text
COMPRESSED_BYTES_MAX = 1024


def test_it_is_under_a_kilobyte_compressed() -> None:
    assert len(gzip.compress(DEPLOYED.encode(), 9)) < COMPRESSED_BYTES_MAX


def test_comments_and_indentation_stay_here_and_nothing_else_does() -> None:
    assert visits.deployed("// a\n  // b\n  c('//d'); // e\n\n\tf\n") == "c('//d'); // e\nf\n"
    code = [line.strip() for line in visits.BEACON.read_text().splitlines()]
    assert DEPLOYED.splitlines() == [line for line in code if line and not line.startswith("//")]
    assert "`" not in DEPLOYED  # in a template, indentation would be text
    assert "/*" not in DEPLOYED


def test_it_is_ascii_so_that_no_page_can_read_it_in_a_wrong_encoding() -> None:
    assert DEPLOYED.isascii()


def test_it_is_a_script_and_no_module() -> None:
    check = ["node", "--check", "--input-type=commonjs", "-"]
    subprocess.run(check, input=DEPLOYED, text=True, check=True, capture_output=True)
    assert not re.search(r"\b(import|export)\b", DEPLOYED)


def test_it_touches_nothing_that_stores_or_tells_visitors_apart() -> None:
    forbidden = (
        r"cookie|localStorage|sessionStorage|indexedDB|caches|\.name\b|userAgent|plugins|screen|referrer|language"
    )
    assert not re.search(forbidden, DEPLOYED)
    assert re.findall(r"nav\.(\w+)", DEPLOYED) == ["sendBeacon", "sendBeacon", "doNotTrack", "globalPrivacyControl"]
