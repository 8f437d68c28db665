"""The wheel of this checkout, and environments in which nothing but it is installed.

Nothing is downloaded: the wheel is built with the setuptools of this environment, and what a clean
environment shall have besides is linked from here.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from collections.abc import Iterable
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement

from tests.tidy.checkout import PRODUCT, ROOT

TIMEOUT_S = 300
TOP_MODULES = ("ledgerstream_entry", "pyspark_ledgerstream")
"""The modules beside the packages."""
_FILES = ("pyproject.toml", "README.md", "LICENSE", *(f"{name}.py" for name in TOP_MODULES))


def build_wheel(directory: Path) -> Path:
    """Builds the wheel from a copy of the sources in `directory` and returns its path."""
    sources = directory / "sources"
    sources.mkdir()
    for package in PRODUCT:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, sources / package, ignore=ignored)
    for name in _FILES:
        shutil.copy(ROOT / name, sources / name)
    options = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    _run(["-m", "pip", "wheel", *options, "--wheel-dir", str(directory), str(sources)])
    (wheel,) = directory.glob("*.whl")
    return wheel


def clean_environment(directory: Path, wheel: Path, distributions: Iterable[str]) -> Path:
    """Makes a virtual environment with the wheel and `distributions`, with what they need in turn.

    Returns its folder of commands. Extras are asked for as in a requirement: "hypercorn[trio]".
    """
    venv.create(directory, symlinks=True)
    commands = directory / "bin"
    python = str(commands / "python")
    options = ["--quiet", "--no-deps", "--no-index", "--no-compile"]
    _run(["-m", "pip", "--python", python, "install", *options, str(wheel)])
    (site,) = directory.glob("lib/python*/site-packages")
    for name in _with_needs(distributions):
        _link(name, site)
    return commands


def _with_needs(requirements: Iterable[str]) -> set[str]:
    """The names of the distributions that are installed for `requirements`."""
    names: set[str] = set()
    waiting = [Requirement(requirement) for requirement in requirements]
    while waiting:
        requirement = waiting.pop()
        is_new = requirement.name not in names
        names.add(requirement.name)
        for extra in ["", *requirement.extras] if is_new else requirement.extras:
            for line in distribution(requirement.name).requires or ():
                needed = Requirement(line)
                if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                    waiting.append(needed)
    return names


def _link(name: str, site: Path) -> None:
    """Links all that the distribution has beside its commands into `site`."""
    found = distribution(name)
    tops = {path.parts[0] for path in found.files or () if path.parts[0] != ".."}
    for top in tops - {"__pycache__"}:
        target = site / top
        if not target.exists():
            target.symlink_to(Path(str(found.locate_file(top))))


def _run(arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
