"""The page at /dev/openapi: reads the OpenAPI document and sends requests. One file of ours, with nothing from afar.

Swagger UI would be 8 MB, and the package of it that can be pinned is of 2022: it does not know OpenAPI 3.1.
"""

from importlib.resources import files

PATH = "/dev/openapi"


def page() -> str:
    """The page, as HTML."""
    return files(__package__).joinpath("openapi.html").read_text(encoding="utf-8")
