"""No tracked file names a machine's paths or a package registry, and links lead somewhere."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tidy.checkout import PRODUCT, ROOT, files, name_of, python_files, tree_of

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


_EXAMPLES = {"_pb2.py", "clicks.py", "x.py", "docs/x.md", "build/night/report.md"}
"""In documents and comments: endings of names, and files that a user or a run creates."""
_FILE = re.compile(r"(?<![\w./-])(?:[\w-]+/)*[\w-]+\.(?:py|md)\b")
_PRIVATE = re.compile(r"\bfacts(?: section)? \d[\d.]*")
"""Sections of notes that are not in the repository."""
_FOLDERS = "|".join([*PRODUCT, "tests", "benchmarks", "examples", "tools"])
_MODULE = re.compile(rf"`(?:python -m )?((?:{_FOLDERS})(?:\.\w+)+)")


def _prose(path: Path) -> Iterator[str]:
    """Yields the text of a document, or the comments and docstrings of a Python file."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        yield text
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.string
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield str(node.value.value)


def _is_file(cited: str, beside: Path) -> bool:
    """Whether the repository has a file of this name or with this end of its path."""
    names = (name_of(path) for path in files())
    return (beside.parent / cited).exists() or any(
        f"/{name}".endswith(f"/{cited}") for name in names
    )


_TAGS = {"ledgerstream.stream", "ledgerstream.sink"}
"""Keys of custom metadata."""


def _is_module(cited: str) -> bool:
    """Whether it is a module or package, or a name that one holds."""
    if cited in _TAGS:
        return True
    place = ROOT
    parts = cited.split(".")
    while parts and (place / parts[0]).is_dir():
        place /= parts.pop(0)
    if parts and (place / f"{parts[0]}.py").is_file():
        place /= f"{parts.pop(0)}.py"
    else:
        place /= "__init__.py"
    return not parts or re.search(rf"\b{parts[0]}\b", place.read_text(encoding="utf-8")) is not None


def missing_citations(text: str, path: Path) -> list[str]:
    """Returns the files and modules that the text of a file names and the repository lacks."""
    cited = set(_FILE.findall(text)) - _EXAMPLES
    modules = set(_MODULE.findall(text))
    return sorted(
        _PRIVATE.findall(text)
        + [name for name in cited if not _is_file(name, path)]
        + [name for name in modules if not _is_module(name)]
    )


def test_documents_and_comments_cite_only_what_the_repository_holds() -> None:
    documents = [path for path in files() if path.suffix == ".md"]
    found = {
        name_of(path): missing
        for path in (*documents, *python_files())
        if (missing := [each for text in _prose(path) for each in missing_citations(text, path)])
    }
    assert not found


def test_a_citation_of_what_is_not_there_is_noticed() -> None:
    here = Path(__file__)
    text = "core/append.py, checkout.py, docs/formats.md, `ledger.core.append`, `stream.Namespace`"
    assert not missing_citations(text, here)
    assert missing_citations("Served late (facts " + "2.4, 4).", here) == ["facts " + "2.4"]
    gone = ["core/gone.py", "gone.py", "ledger.core.gone", "stream.Gone"]
    assert missing_citations("core/gone.py gone.py `ledger.core.gone.f` `stream.Gone`", here) == [
        each.replace("ledger.core.gone", "ledger.core.gone.f") for each in gone
    ]


def _anchors(text: str) -> set[str]:
    """Returns the anchors of the headings of a document, as GitHub makes them."""
    outside_code = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", outside_code, re.MULTILINE)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading).strip().replace(" ", "-") for heading in plain}


def test_links_to_headings_lead_to_headings() -> None:
    link = re.compile(r"\]\(([^)#\s]*\.md)?#([^)\s]+)\)")
    missing = {
        f"{name_of(path)}: {target}#{anchor}"
        for path in files()
        if path.suffix == ".md"
        for target, anchor in link.findall(path.read_text(encoding="utf-8"))
        if anchor not in _anchors((path.parent / (target or path.name)).read_text(encoding="utf-8"))
    }
    assert not missing


def test_texts_name_headings_that_documents_have() -> None:
    """An error that says "see 'X' in docs/x.md" leads to a heading."""
    named = re.compile(r"'([A-Z][^']+)' in (docs/[\w/-]+\.md)")
    found = {
        (heading, document)
        for path in python_files(*PRODUCT)
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for heading, document in named.findall(node.value)
    }
    assert len(found) >= 2
    for heading, document in sorted(found):
        assert f"# {heading}\n" in (ROOT / document).read_text(encoding="utf-8"), heading
