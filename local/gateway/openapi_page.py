"""The page at /dev/openapi: reads the OpenAPI document and sends requests. One file of ours, with nothing from afar.

Swagger UI would be 8 MB, and the package of it that can be pinned is of 2022: it does not know OpenAPI 3.1.
"""

from pathlib import Path

PATH = "/dev/openapi"
_FILE = Path(__file__).with_name("openapi.html")


def page() -> str:
    """The page, as HTML."""
    return _FILE.read_text(encoding="utf-8")
