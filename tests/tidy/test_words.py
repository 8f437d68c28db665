"""No tracked file names a machine's paths or a package registry, and links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.tidy.checkout import ROOT, files, name_of

# Put together from parts, so that this file itself may be judged.
_UNWANTED = re.compile(
    "|".join(
        [
            "py" + r"pi\.org",
            "python" + r"hosted\.org",
            "extra-index" + "-url",
            "--index" + "-url",
            r"(?<![\w./-])/(?:"
            + "|".join(["ro" + "ot", "wo" + "rk", "ho" + "me", "Us" + "ers"])
            + ")/",
        ]
    )
)
_LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(#[^)\s]*)?\)")


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None


def unwanted_words(text: str) -> list[str]:
    return [match.group() for match in _UNWANTED.finditer(text)]


def test_files_name_no_machine_and_no_registry() -> None:
    found = {name_of(path): unwanted_words(_text(path) or "") for path in files()}
    assert not {name: words for name, words in found.items() if words}


def test_such_words_are_noticed() -> None:
    assert unwanted_words("see https://py" + "pi.org/simple")
    assert unwanted_words("open('/ro" + "ot/x')")
    assert not unwanted_words("/var/lib/x, ledger/root/x, a/work/b")


@pytest.mark.parametrize("path", [path for path in files() if path.suffix == ".md"], ids=name_of)
def test_links_between_documents_lead_somewhere(path: Path) -> None:
    targets = [match.group(1) for match in _LINK.finditer(path.read_text(encoding="utf-8"))]
    local = [
        target for target in targets if "://" not in target and not target.startswith("mailto:")
    ]
    missing = [target for target in local if not (path.parent / target).exists()]
    assert not missing


def test_pins_are_names_and_versions_only() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert pins
    assert not [pin for pin in pins if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!+_]+", pin)]


def test_documents_name_the_sources_that_quote_them() -> None:
    """`docs/x.md` written in a comment or docstring is a promise that the file is there."""
    quoted = re.compile(r"\bdocs/(?:[\w-]+/)*([\w-]+)\.md\b")
    missing = {
        f"{name_of(path)}: {match.group()}"
        for path in files()
        if path.suffix in {".py", ".md", ".toml"}
        for match in quoted.finditer(_text(path) or "")
        if not (ROOT / match.group()).exists() and match.group(1) != "x"
    }
    assert not missing
