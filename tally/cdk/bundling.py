"""The code that the functions run: handlers, counting core and pinned packages, built without Docker."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from aws_cdk import AssetHashType
from aws_cdk import aws_lambda as lambda_

from tally.api import scripts
from tally.api.console import UPLOT_FILES
from tally.api.operation import UserVisibility
from tally.api.scripts import CLIENT_FOLDER
from tally.contract.declarations import Declarations
from tally.operations.health import OPENAPI_FILE
from tally.paths import PACKAGE, PACKAGES

SOURCE_SUFFIXES = {".py", ".js", ".html", ".css"}
# No function imports these parts of the package.
NOT_DEPLOYED = {"cdk", "cli", "client", "contract", "dev", "maintenance", "paths.py", "records"}
COUNTERS_FILE = "counters.py"
PYTHON_VERSION = "3.14"
PLATFORM = "aarch64-manylinux2014"
INSTALL_TIMEOUT_S = 300  # the packages take seconds; a registry that hangs must not hang a deploy
# An installer writes these files about itself and this machine. The licences beside them stay.
INSTALLER_FILES = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json")


class BundlingError(Exception):
    """The packages could not be installed. The message is one line, for the deployer."""


@dataclass(frozen=True)
class Bundle:
    """The one asset of all functions."""

    lambdas: Path
    """The folder of the sources, with their `requirements.txt`."""
    declarations: Declarations
    """The file of these declarations replaces the `counters.py` of the sources."""
    likers_visible: UserVisibility
    """Who may see which users like a post. The API document says this."""
    cache_folder: Path
    """The folder that keeps built bundles, by their digest: a synth without a change installs nothing."""

    @property
    def sources(self) -> dict[str, Path]:
        """The deployed files by their path in the bundle, sorted: handlers, core and files for browsers."""
        files = {path.name: path for path in self.lambdas.glob("*.py")}
        for path in PACKAGE.rglob("*"):
            inside = path.relative_to(PACKAGE)
            top = inside.parts[0]
            is_deployed = path.name in scripts.SERVED_FILES if top == CLIENT_FOLDER.name else top not in NOT_DEPLOYED
            if path.suffix in SOURCE_SUFFIXES and is_deployed:
                files[f"tally/{inside.as_posix()}"] = path
        charts = {f"tally/console/{name}": path for name, path in UPLOT_FILES.items()}
        return dict(sorted({**files, **charts, COUNTERS_FILE: self.declarations.path}.items()))

    @property
    def requirements(self) -> Path:
        """The pins of the packages."""
        return self.lambdas / "requirements.txt"

    def digest(self) -> str:
        """A hash of the sources, the pins and how they are installed: equal on every machine. Raises BundlingError."""
        if not all(path.exists() for path in UPLOT_FILES.values()):
            raise BundlingError("node_modules/uplot is missing: run `make setup`")
        digest = hashlib.sha256(f"{PYTHON_VERSION} {PLATFORM} {INSTALLER_FILES} {self.likers_visible}\n".encode())
        for name, path in {self.requirements.name: self.requirements, **self.sources}.items():
            content = path.read_bytes()
            digest.update(f"{name} {len(content)}\n".encode() + content)
        return digest.hexdigest()

    def code(self, *, bundled: bool) -> lambda_.AssetCode:
        """Returns the asset. If not `bundled`: the bare sources, for templates that are not deployed.

        CDK's ILocalBundling does not fit: its errors become a page of traceback in two languages, and it keeps no
        bundle from one synth to the next. Raises BundlingError.
        """
        name = self.digest()
        if not bundled:
            return lambda_.Code.from_asset(
                str(self.lambdas),
                asset_hash=f"{name}-unbundled",  # another asset than the bundle that a deploy uploads
                asset_hash_type=AssetHashType.CUSTOM,
                exclude=["**/__pycache__", "**/*.pyc"],
            )
        target = self.cache_folder / f"lambdas-{name[:16]}"
        if not target.exists():
            self._write_to_cache(target)
        return lambda_.Code.from_asset(str(target), asset_hash=name, asset_hash_type=AssetHashType.CUSTOM)

    def _write_to_cache(self, target: Path) -> None:
        """Write the bundle to `target`, whole or not at all, and remove the bundles of older sources."""
        self.cache_folder.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.cache_folder) as folder:
            bundle = Path(folder) / "bundle"
            self.write(bundle)
            try:
                bundle.rename(target)
            except OSError:
                if not target.exists():  # otherwise another synth has just made the folder
                    raise
        for old in self.cache_folder.glob("lambdas-*"):
            if old != target:
                shutil.rmtree(old, ignore_errors=True)

    def write(self, target: Path) -> None:
        """Write sources and packages for Lambda's arm64 Python to the new folder `target`. Raises BundlingError."""
        if PACKAGES.is_dir():  # a wheel has the packages, made by `install_packages`
            shutil.copytree(PACKAGES, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            install_packages(self.requirements, target)
        for name, path in self.sources.items():
            copy = target / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
        (target / OPENAPI_FILE.name).write_text(self.openapi(), encoding="utf-8")
        for path in target.rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)  # Lambda reads as another user; the umask here may forbid it

    def openapi(self) -> str:
        """Returns the OpenAPI document. The import is here because it loads the core, which few synths need."""
        from tally.contract.document import document_json

        declared = self.declarations
        return document_json(declared.operations, declared.counters, likers_visible=self.likers_visible)


def install_packages(requirements: Path, target: Path) -> None:
    """Install the pinned packages for Lambda's arm64 Python into the new folder `target`. Raises BundlingError."""
    command = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--target", str(target)]
    command += ["--python-platform", PLATFORM, "--python-version", PYTHON_VERSION, "--only-binary", ":all:"]
    command += ["--require-hashes", "--no-deps", "--requirement", str(requirements)]  # the pins name every package
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S)
    except subprocess.CalledProcessError as error:
        reason = " ".join(error.stderr.split()) or f"exit code {error.returncode}"
        raise BundlingError(f"uv could not install {requirements}: {reason}") from None
    except subprocess.TimeoutExpired:
        raise BundlingError(f"uv did not install {requirements} within {INSTALL_TIMEOUT_S} s") from None
    shutil.rmtree(target / "bin", ignore_errors=True)  # the packages' commands: nothing in Lambda runs them
    for path in target.glob("*.dist-info/*"):
        if path.name in INSTALLER_FILES:
            path.unlink()
