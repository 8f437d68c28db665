"""Fragments of the changelog can be collected, and the changelog has the current version."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path, PurePosixPath

import pytest

from tests.tidy.checkout import ROOT, files

CONFIGURATION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
_TOWNCRIER = CONFIGURATION["tool"]["towncrier"]
AREAS = {section["path"] for section in _TOWNCRIER["section"]}
TYPES = {kind["directory"] for kind in _TOWNCRIER["type"]}
_NAME = re.compile(r"\+[a-z0-9][a-z0-9-]*\.(?P<type>[a-z]+)\.md")


def problems(name: str, text: str) -> list[str]:
    """What is wrong with a fragment whose path below changelog.d is `name`."""
    found = []
    path = PurePosixPath(name)
    match = _NAME.fullmatch(path.name)
    if str(path.parent) not in AREAS:
        found.append(f"{name}: the folder is none of {sorted(AREAS)}")
    if match is None:
        found.append(f"{name}: the name is not like +short-name.fixed.md")
    elif match["type"] not in TYPES:
        found.append(f"{name}: {match['type']} is none of {sorted(TYPES)}")
    if not text.strip() or "\n\n" in text.strip() or re.search(r"^(#|[-*+] |\d+\. )", text, re.M):
        found.append(f"{name}: the text is not one paragraph")
    return found


def test_every_fragment_can_be_collected() -> None:
    folder = ROOT / "changelog.d"
    found = [path for path in files() if path.is_relative_to(folder)]
    ignored = {folder / name for name in _TOWNCRIER["ignore"]}
    assert not [
        problem
        for path in found
        if path not in ignored
        for problem in problems(
            path.relative_to(folder).as_posix(), path.read_text(encoding="utf-8")
        )
    ]


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("bookies/+x.mended.md", "Text.", "mended is none of"),
        ("+x.fixed.md", "Text.", "the folder is none of"),
        ("bookies/12.fixed.md", "Text.", "the name is not like"),
        ("bookies/x.fixed.md", "Text.", "the name is not like"),
        ("bookies/+x.fixed.md", "", "the text is not one paragraph"),
        ("bookies/+x.fixed.md", "One.\n\nTwo.\n", "the text is not one paragraph"),
        ("bookies/+x.fixed.md", "- One.\n- Two.\n", "the text is not one paragraph"),
    ],
)
def test_a_fragment_that_would_be_lost_is_noticed(name: str, text: str, problem: str) -> None:
    assert [problem in line for line in problems(name, text)] == [True]
    assert not problems("bookies/+some-name2.fixed.md", "One\nparagraph.\n")


def test_the_changelog_has_the_current_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(rf"^## {re.escape(CONFIGURATION['project']['version'])} \(", text, re.M)
    assert text.count(_TOWNCRIER["start_string"]) == 1
    assert not re.search(r"\(#\d+|\B#\d+\b", text), "numbers of issues mean nothing to a user"


def test_towncrier_collects_a_fragment(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "changelog.d", tmp_path / "changelog.d")
    for name in ("pyproject.toml", "CHANGELOG.md"):
        shutil.copy(ROOT / name, tmp_path / name)
    for fragment in tmp_path.glob("changelog.d/*/*.md"):
        fragment.unlink()
    (tmp_path / "changelog.d" / "bookies").mkdir(exist_ok=True)
    (tmp_path / "changelog.d" / "bookies" / "+x.fixed.md").write_text("One\nparagraph.\n")
    before = (tmp_path / "CHANGELOG.md").read_text(encoding="utf-8")
    options = ["--version", "99.0.0", "--date", "2099-12-31", "--keep"]
    subprocess.run(
        [sys.executable, "-m", "towncrier", "build", *options],
        cwd=tmp_path, check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    after = (tmp_path / "CHANGELOG.md").read_text(encoding="utf-8")
    section = "## 99.0.0 (2099-12-31)\n\n### Bookies\n\n#### Fixed\n\n- One\n  paragraph.\n\n"
    start = _TOWNCRIER["start_string"]
    assert after == before.replace(f"{start}\n", f"{start}\n{section}")


def test_the_readme_of_fragments_names_every_area_and_type() -> None:
    text = (ROOT / "changelog.d" / "README.md").read_text(encoding="utf-8")
    assert not {name for name in AREAS | TYPES if f"`{name}`" not in text}
