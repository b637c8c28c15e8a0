"""The page at /dev/openapi, which shows the OpenAPI document and sends requests. It loads nothing from elsewhere.

Swagger UI would be 8 MB, and its package that can be pinned is of 2022: it does not know OpenAPI 3.1.
"""

from importlib.resources import files

PATH = "/dev/openapi"


def page() -> str:
    """The page, as HTML."""
    return files(__package__).joinpath("openapi.html").read_text(encoding="utf-8")
