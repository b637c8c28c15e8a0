"""Paths of files. In a wheel the files are in the package, in a checkout beside the package (release/build.py)."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
_BUNDLED_LAMBDAS = PACKAGE / "cdk/lambdas"
IS_WHEEL = _BUNDLED_LAMBDAS.is_dir()
LAMBDAS = _BUNDLED_LAMBDAS if IS_WHEEL else PACKAGE.parent / "lambdas"
PACKAGES = PACKAGE / "cdk/packages"
"""The packages that a wheel brings for the deployed functions. A checkout installs the pinned packages."""


def page(section: str) -> str:
    """Returns where a person finds a section of docs/, which a wheel does not have."""
    return f"docs/{section}" + (", in Tally's repository" if IS_WHEEL else "")


def version() -> str:
    """Returns the version of this package. A checkout reads it from the file that the package is built with."""
    file = PACKAGE.parent / "pyproject.toml"
    if file.is_file():
        import tomllib  # 0.1 s, like `metadata`, and every command imports this module

        return str(tomllib.loads(file.read_text(encoding="utf-8"))["project"]["version"])
    from importlib import metadata

    return metadata.version("tallystick")
