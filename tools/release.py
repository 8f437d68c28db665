"""Builds, checks and tags a release: `make release`. Nothing is uploaded.

The version is the one in pyproject.toml. A release is refused unless the work tree is clean, the
version has a section in CHANGELOG.md, no fragment of the changelog is left and the tag is new. The
source distribution is built first and the wheel from it; both are checked, and the wheel is
installed into an empty environment, before the commit gets its annotated tag.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from packaging.metadata import InvalidMetadata, Metadata

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("bookie", "connectors", "ledger", "ledgerstream", "stream")
_SECTION = re.compile(r"^## (?P<version>\S+) \((?P<date>\d{4}-\d\d-\d\d)\)$", re.MULTILINE)
_TIMEOUT_S = 600


class ReleaseRefused(Exception):
    """Something is missing for a release: the text says what, and the cure."""


def run(command: Sequence[str], cwd: Path, **environment: str) -> str:
    """Runs a command and returns its output. Raises ReleaseRefused with its errors if it fails."""
    done = subprocess.run(
        command, cwd=cwd, env={**os.environ, **environment},
        capture_output=True, text=True, timeout=_TIMEOUT_S, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise ReleaseRefused(f"{' '.join(command)}: {done.stdout}{done.stderr}".strip())
    return done.stdout


def version_of(root: Path) -> str:
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return str(project["version"])


def tag_of(version: str) -> str:
    return f"v{version}"


def notes(root: Path, version: str) -> str:
    """Returns the text of the changelog's newest section. Raises ReleaseRefused if that is not the
    one of `version`, or is empty."""
    text = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    sections = list(_SECTION.finditer(text))
    if not sections or sections[0]["version"] != version:
        found = sections[0]["version"] if sections else "no section"
        raise ReleaseRefused(
            f"CHANGELOG.md begins with {found}, not with {version}. Cure: `make changelog`, read "
            "what it wrote, and commit it"
        )
    end = sections[1].start() if len(sections) > 1 else len(text)
    section = text[sections[0].end() : end].strip()
    if not section:
        raise ReleaseRefused(f"the section {version} of CHANGELOG.md is empty")
    return section


def check_tree(root: Path, version: str) -> None:
    """Raises ReleaseRefused unless the commit can be released as `version`."""
    changed = run(["git", "status", "--porcelain"], root).splitlines()
    if changed:
        raise ReleaseRefused(
            f"the work tree has {len(changed)} changes that are not committed, the first is "
            f"{changed[0].strip()!r}. Cure: commit or remove them"
        )
    left = sorted(path.name for path in (root / "changelog.d").glob("*/*.md"))
    if left:
        raise ReleaseRefused(
            f"changelog.d has {len(left)} fragments that are in no release, the first is "
            f"{left[0]}. Cure: give pyproject.toml the next version and run `make changelog`"
        )
    if run(["git", "tag", "--list", tag_of(version)], root):
        raise ReleaseRefused(
            f"the tag {tag_of(version)} exists. Cure: give pyproject.toml the next version"
        )


def build(root: Path, directory: Path) -> tuple[Path, Path]:
    """Builds the source distribution, and the wheel from it, in the empty `directory`."""
    committed_s = run(["git", "log", "-1", "--format=%ct"], root).strip()
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(directory)]
    run(command, root, SOURCE_DATE_EPOCH=committed_s)
    (source,) = directory.glob("*.tar.gz")
    (wheel,) = directory.glob("*.whl")
    return source, wheel


def check_wheel(wheel: Path, root: Path, version: str) -> None:
    """Raises ReleaseRefused unless the wheel has valid metadata and exactly the tracked files."""
    with zipfile.ZipFile(wheel) as archive:
        files = [name for name in archive.namelist() if not name.endswith("/")]
        (metadata_name,) = [name for name in files if name.endswith(".dist-info/METADATA")]
        check_metadata(archive.read(metadata_name), version)
    shipped = {name for name in files if ".dist-info/" not in name}
    check_same(wheel.name, tracked_product(root), shipped)
    information = metadata_name.rpartition("/")[0]
    for needed in ("entry_points.txt", "licenses/LICENSE"):
        if f"{information}/{needed}" not in files:
            raise ReleaseRefused(f"{wheel.name} has no {needed}")


def check_source(source: Path, root: Path, version: str) -> None:
    """Raises ReleaseRefused unless the source distribution can be built and read by others."""
    with tarfile.open(source) as archive:
        files = {member.name.partition("/")[2] for member in archive if member.isfile()}
        extracted = archive.extractfile(f"{source.name.removesuffix('.tar.gz')}/PKG-INFO")
        if extracted is None:
            raise ReleaseRefused(f"{source.name} has no PKG-INFO")
        check_metadata(extracted.read(), version)
    needed = tracked_product(root) | {"LICENSE", "README.md", "pyproject.toml"}
    check_same(source.name, needed, files & needed)


def check_metadata(data: bytes, version: str) -> None:
    """Raises ReleaseRefused unless a package index would accept the metadata."""
    try:
        metadata = Metadata.from_email(data, validate=True)
    except ExceptionGroup as errors:
        raise ReleaseRefused(f"invalid metadata: {list(errors.exceptions)}") from errors
    except InvalidMetadata as error:
        raise ReleaseRefused(f"invalid metadata: {error}") from error
    if str(metadata.version) != version:
        raise ReleaseRefused(f"the metadata has the version {metadata.version}, not {version}")
    if not metadata.description or metadata.description_content_type != "text/markdown":
        raise ReleaseRefused("the metadata lacks the README as its description")


def tracked_product(root: Path) -> set[str]:
    """The tracked files that the distribution ships."""
    names = run(["git", "ls-files"], root).splitlines()
    suffixes = (".py", ".pyi", ".proto", "/py.typed")
    modules = {name for name in names if "/" not in name and name.endswith(".py")}
    inside = {name for name in names if name.partition("/")[0] in PACKAGES}
    return modules | {name for name in inside if name.endswith(suffixes)}


def check_same(where: str, expected: Iterable[str], found: Iterable[str]) -> None:
    missing, extra = sorted(set(expected) - set(found)), sorted(set(found) - set(expected))
    if missing or extra:
        raise ReleaseRefused(f"{where} lacks {missing or 'nothing'}, and has besides {extra}")


def check_installed(wheel: Path, version: str) -> None:
    """Raises ReleaseRefused unless the command starts in an environment with the wheel alone."""
    with tempfile.TemporaryDirectory() as directory:
        venv.create(directory, symlinks=True)
        commands = Path(directory) / "bin"
        install = ["install", "--quiet", "--no-deps", "--no-index", "--no-compile", str(wheel)]
        python = str(commands / "python")
        run([sys.executable, "-m", "pip", "--python", python, *install], Path(directory))
        for command in ([str(commands / "ledgerstream")], [python, "-I", "-m", "stream.cli"]):
            found = run([*command, "--version"], Path(directory)).strip()
            if found != version:
                raise ReleaseRefused(f"{' '.join(command)} --version prints {found!r}")


def release(root: Path, *, is_tagged: bool = True) -> str:
    """Builds, checks and tags the version of pyproject.toml. Returns a summary as text.

    Raises ReleaseRefused before anything is changed but `dist`.
    """
    version = version_of(root)
    check_tree(root, version)
    text = notes(root, version)
    directory = root / "dist"
    shutil.rmtree(directory, ignore_errors=True)
    source, wheel = build(root, directory)
    check_source(source, root, version)
    check_wheel(wheel, root, version)
    check_installed(wheel, version)
    done = f"built and checked dist/{source.name} and dist/{wheel.name}"
    if not is_tagged:
        return f"{done}; {tag_of(version)} is not tagged"
    message = f"ledgerstream {version}\n\n{text}\n"
    run(["git", "tag", "--annotate", "--cleanup=whitespace", "--message", message,
         tag_of(version)], root)  # fmt: skip
    return f"{done}; tagged {tag_of(version)}. Next: git push origin {tag_of(version)}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.release", description=__doc__)
    parser.add_argument("--no-tag", action="store_true", help="build and check, but do not tag")
    options = parser.parse_args()
    try:
        sys.stdout.write(f"{release(ROOT, is_tagged=not options.no_tag)}\n")
    except ReleaseRefused as error:
        sys.exit(f"no release: {error}")


if __name__ == "__main__":
    main()
