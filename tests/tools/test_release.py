"""A release is refused while anything is missing, and a release is what its tag says."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.tidy.checkout import ROOT, files, name_of
from tools import release
from tools.release import ReleaseRefused

_AUTHOR = ("-c", "user.name=Tests", "-c", "user.email=tests@example.invalid")
_CHANGELOG = """# Changelog

## 0.2.0 (2027-01-31)

- Newer.

## 0.1.0 (2026-11-25)

- Older.
"""


@pytest.fixture(autouse=True)
def author(monkeypatch: pytest.MonkeyPatch) -> None:
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_NAME", "Tests")
        monkeypatch.setenv(f"GIT_{role}_EMAIL", "tests@example.invalid")


def git(root: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", *_AUTHOR, *arguments], cwd=root, capture_output=True, text=True, check=True
    )
    return done.stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository of one commit that could be released as 0.2.0."""
    root = tmp_path / "repository"
    (root / "changelog.d" / "bookies").mkdir(parents=True)
    (root / "changelog.d" / "README.md").write_text("Fragments.\n")
    (root / "pyproject.toml").write_text('[project]\nversion = "0.2.0"\n')
    (root / "CHANGELOG.md").write_text(_CHANGELOG)
    git(tmp_path, "init", "--quiet", "repository")
    git(root, "add", ".")
    git(root, "commit", "--quiet", "--message", "Begin")
    return root


def test_a_complete_commit_is_accepted(repository: Path) -> None:
    assert release.version_of(repository) == "0.2.0"
    release.check_tree(repository, "0.2.0")
    assert release.notes(repository, "0.2.0") == "- Newer."


def test_changes_that_are_not_committed_refuse_a_release(repository: Path) -> None:
    (repository / "new.py").write_text("")
    with pytest.raises(ReleaseRefused, match=r"1 changes that are not committed.*'\?\? new.py'"):
        release.check_tree(repository, "0.2.0")


def test_fragments_that_are_left_refuse_a_release(repository: Path) -> None:
    (repository / "changelog.d" / "bookies" / "+x.fixed.md").write_text("Fixed.\n")
    git(repository, "add", ".")
    git(repository, "commit", "--quiet", "--message", "Add a fragment")
    with pytest.raises(ReleaseRefused, match=r"1 fragments .* \+x\.fixed\.md\. Cure: .* changelog"):
        release.check_tree(repository, "0.2.0")


def test_a_tag_that_exists_refuses_a_release(repository: Path) -> None:
    git(repository, "tag", "v0.2.0")
    with pytest.raises(ReleaseRefused, match=r"the tag v0\.2\.0 exists"):
        release.check_tree(repository, "0.2.0")


@pytest.mark.parametrize(
    ("version", "text", "problem"),
    [
        ("0.3.0", _CHANGELOG, r"begins with 0\.2\.0, not with 0\.3\.0\. Cure: `make changelog`"),
        ("0.1.0", _CHANGELOG, r"begins with 0\.2\.0, not with 0\.1\.0"),
        ("0.2.0", "# Changelog\n", "begins with no section"),
        ("0.2.0", "## 0.2.0 (2027-01-31)\n\n", r"the section 0\.2\.0 of CHANGELOG.md is empty"),
    ],
)
def test_a_version_without_notes_is_refused(
    repository: Path, version: str, text: str, problem: str
) -> None:
    (repository / "CHANGELOG.md").write_text(text)
    with pytest.raises(ReleaseRefused, match=problem):
        release.notes(repository, version)


def test_metadata_that_an_index_would_reject_is_refused() -> None:
    good = (
        b"Metadata-Version: 2.4\nName: x\nVersion: 1.0\n"
        b"Description-Content-Type: text/markdown\n\nText.\n"
    )
    release.check_metadata(good, "1.0")
    with pytest.raises(ReleaseRefused, match="invalid metadata"):
        release.check_metadata(good.replace(b"Name: x", b"Name: x y"), "1.0")
    with pytest.raises(ReleaseRefused, match=r"has the version 1\.0, not 2\.0"):
        release.check_metadata(good, "2.0")
    with pytest.raises(ReleaseRefused, match="lacks the README"):
        release.check_metadata(good.replace(b"markdown", b"plain"), "1.0")


def test_files_that_are_missing_or_too_many_are_named() -> None:
    release.check_same("x.whl", ["a", "b"], ["b", "a"])
    with pytest.raises(ReleaseRefused, match=r"x\.whl lacks \['a'\], and has besides \['c'\]"):
        release.check_same("x.whl", ["a", "b"], ["b", "c"])


@pytest.mark.slow
@pytest.mark.system
def test_this_checkout_can_be_released(tmp_path: Path) -> None:
    """A copy of this checkout is built, checked, installed and tagged."""
    root = tmp_path / "copy"
    for path in files():
        target = root / name_of(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    for fragment in (root / "changelog.d").glob("*/*.md"):
        fragment.unlink()
    version = release.version_of(root)
    git(root, "init", "--quiet")
    git(root, "add", ".")
    git(root, "commit", "--quiet", "--message", "Begin")
    assert f"tagged v{version}" in release.release(root)
    assert git(root, "cat-file", "-t", f"v{version}").strip() == "tag"
    message = git(root, "tag", "--list", "--format=%(contents)", f"v{version}")
    assert message.startswith(f"ledgerstream {version}\n\n")
    assert release.notes(ROOT, version) in message
    assert git(root, "status", "--porcelain") == ""
    with pytest.raises(ReleaseRefused, match="exists"):
        release.release(root)
