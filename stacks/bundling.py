"""What the functions carry: the handlers, the counting core and their pinned packages, built without Docker."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from aws_cdk import AssetHashType
from aws_cdk import aws_lambda as lambda_

ROOT = Path(__file__).parent.parent
LAMBDAS = ROOT / "lambdas"
BUILD = ROOT / ".build"  # bundles are kept here by their digest: a synth without a change installs nothing
SOURCE_SUFFIXES = {".py", ".js"}
PYTHON_VERSION = "3.14"
PLATFORM = "aarch64-manylinux2014"
INSTALL_TIMEOUT_S = 300  # five packages take seconds; a registry that hangs must not hang a deploy
# What an installer writes of itself and of this machine; the licences beside it stay.
INSTALLER_FILES = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json")


class BundlingError(Exception):
    """The packages could not be installed. The message is one line, for the person who deploys."""


def sources() -> list[Path]:
    """The files that are deployed, in a fixed order: the handlers, and the script that one of them serves."""
    return sorted(path for path in LAMBDAS.rglob("*") if path.suffix in SOURCE_SUFFIXES)


def digest() -> str:
    """Names what is deployed: a hash of the sources, the pins and how they are installed, equal on every machine."""
    found = hashlib.sha256(f"{PYTHON_VERSION} {PLATFORM} {INSTALLER_FILES}\n".encode())
    for path in [LAMBDAS / "requirements.txt", *sources()]:
        content = path.read_bytes()
        found.update(f"{path.relative_to(LAMBDAS).as_posix()} {len(content)}\n".encode() + content)
    return found.hexdigest()


def code(*, bundled: bool) -> lambda_.AssetCode:
    """The one asset of all functions; the bare sources, for templates that nobody deploys, if not `bundled`.

    Made before CDK asks for it and not by its ILocalBundling: an error there comes back through two languages as a
    page of traceback, and bundles would not be kept from one synth to the next. Raises BundlingError.
    """
    name = digest()
    if not bundled:
        return lambda_.Code.from_asset(
            str(LAMBDAS),
            asset_hash=f"{name}-unbundled",  # never to be taken for the real one in the bucket of a deployment
            asset_hash_type=AssetHashType.CUSTOM,
            exclude=["**/__pycache__", "**/*.pyc"],
        )
    target = BUILD / f"lambdas-{name[:16]}"
    if not target.exists():
        _keep(target)
    return lambda_.Code.from_asset(str(target), asset_hash=name, asset_hash_type=AssetHashType.CUSTOM)


def _keep(target: Path) -> None:
    """Bundle to `target`, whole or not at all, and remove the bundles of older sources."""
    BUILD.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BUILD) as folder:
        made = Path(folder) / "bundle"
        bundle(made)
        try:
            made.rename(target)
        except OSError:
            if not target.exists():  # else another synth has just made the same
                raise
    for old in BUILD.glob("lambdas-*"):
        if old != target:
            shutil.rmtree(old, ignore_errors=True)


def bundle(target: Path) -> None:
    """Write sources and packages for Lambda's arm64 Python to the new folder `target`. Raises BundlingError."""
    command = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--target", str(target)]
    command += ["--python-platform", PLATFORM, "--python-version", PYTHON_VERSION, "--only-binary", ":all:"]
    command += ["--no-deps", "--requirement", str(LAMBDAS / "requirements.txt")]  # the pins are complete
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S)
    except subprocess.CalledProcessError as error:
        reason = " ".join(error.stderr.split()) or f"exit code {error.returncode}"
        raise BundlingError(f"uv could not install lambdas/requirements.txt: {reason}") from None
    except subprocess.TimeoutExpired:
        raise BundlingError(f"uv did not install lambdas/requirements.txt within {INSTALL_TIMEOUT_S} s") from None
    shutil.rmtree(target / "bin", ignore_errors=True)  # commands of the packages: nobody calls them in Lambda
    for path in target.glob("*.dist-info/*"):
        if path.name in INSTALLER_FILES:
            path.unlink()
    for path in sources():
        copy = target / path.relative_to(LAMBDAS)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
    (target / "functions" / "openapi.json").write_text(
        _openapi(), encoding="utf-8"
    )  # served by health.py, which then makes none
    for path in target.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)  # Lambda reads them as another user, whatever the umask here


def _openapi() -> str:
    """The OpenAPI document of the declarations. Imported here: it loads the core, which other synths do without."""
    from counters import COUNTERS
    from openapi.document import text

    return text(COUNTERS)
