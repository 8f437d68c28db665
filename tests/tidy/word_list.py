"""Words and phrases that readers have to translate, and what standard English says instead.

`python -m tests.tidy.word_list [FOLDER ...]` prints each place where one stands. Prose is every
comment, every string and every document; names are those of files, classes, functions, parameters
and attributes. CONTRIBUTING.md says the rule; this list holds the words that were met.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator, Set
from pathlib import Path
from typing import NamedTuple

from tests.tidy.checkout import ROOT, files, name_of

PROSE = {
    r"who(?:so)?ever": "the caller, a client that",
    r"so many(?! (?:\w+ ){0,6}(?:that|as))": "up to N, N at a time",
    r"anew": "again, from scratch",
    r"for ever": "forever, permanently",
    r"(?:is|are|was|were|be|been) told": "is notified, receives",
    r"tells?(?! (?:apart|time))": "returns, reports, notifies",
    r"telling": "reporting",
    r"(?:he|she|himself|herself|him)": "it, the caller",
    r"go(?:es)? on": "continue",
    r"going on": "continuing",
    r"went on": "continued",
    r"gone on": "continued",
    r"c[ao]mes? back": "return",
    r"coming back": "returning",
    r"stands? in(?! for)": "is defined in, is stored in",
    r"give(?:s|n)? way": "yield",
    r"giving way": "yielding",
    r"lets? in": "admit, yield to",
    r"(?:on|in) (?:its|their|the) way(?! to)": "in flight",
    r"under ?way": "in progress, in flight",
    r"in vain": "without success",
    r"ere": "before",
    r"beforehand": "in advance",
    r"torments?|tormented|tormenting": "fault test, stress",
    r"deeds?": "operation, action",
    r"mortals?": "killable process",
    r"landmarks?": "indexed entry",
    r"makes? sure (?:of )?what": "verify",
    r"what (?:is|was) (?:said|asked)": "the request, the message",
    r"by heart": "in memory",
    r"at (?:its|their) word": "as reported",
    r"wakes? up who": "wake the waiters",
    r"who(?:m)? (?:waits?|asks?|reads?|writes?|appends?|opens?|wants?|needs?)": "a reader that",
    r"who(?:m)? (?:calls?|closes?|takes?|gets?)": "the caller, a client that",
    r"those who": "readers that, callers that",
    r"one who": "a client that",
    r"(?:much|many|far) too much": "too much",
    r"it is wont": "it usually does",
    r"thereof|therein|thereby|whereby|hereby|herein": "of it, in it",
    r"betray\w*": "reveal",
    r"bur(?:y|ies|ied) (?:it|him|them|all|the|a) (?:session|process|others?)": "expire",
}
"""Pattern (whole words, any case) -> what to write instead."""

NAMES = {
    "anew", "whoever", "torment", "torments", "tormented", "deed", "deeds", "mortal", "mortals",
    "landmark", "landmarks", "mistake", "mistakes", "told", "tell", "tells", "telling", "betray",
    "company", "story", "stories", "vain", "huddle",
    "bury", "buried",
}  # fmt: skip
"""Parts of names between underscores or capitals that say nothing to a reader of this field."""

FILE_NAMES = NAMES | {
    "answers", "busy", "chances", "collected", "doubt", "found", "give", "hand", "heads", "held",
    "keeping", "kept", "late", "losses", "machine", "meters", "needs", "own", "pace", "patient",
    "pieces", "places", "plain", "presence", "pressure", "prompt", "refusals", "rereads", "shares",
    "silence", "small", "succession", "survey", "turns", "words", "advancing", "lane", "once",
}  # fmt: skip
"""Parts of file names beside those."""

_PROSE = {
    re.compile(rf"(?<![\w-])(?:{one})(?![\w-])", re.IGNORECASE): better
    for one, better in PROSE.items()
}
_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


class Found(NamedTuple):
    """A word that stands somewhere."""

    line: int
    word: str
    better: str


def in_prose(text: str, first_line: int = 1) -> Iterator[Found]:
    """Yields the unwanted phrases of a text; line breaks count as spaces."""
    flat = re.sub(r"\n[ \t]*(?:#:? ?)?", lambda found: "\n" + " " * (len(found.group()) - 1), text)
    joined = re.sub(r"\s", " ", flat)
    # A phrase may run over a line's end, where indentation widens its space.
    squeezed, origin = _squeezed(joined)
    for pattern, better in _PROSE.items():
        for found in pattern.finditer(squeezed):
            at = origin[found.start()]
            yield Found(first_line + text.count("\n", 0, at), found.group(), better)


def _squeezed(text: str) -> tuple[str, list[int]]:
    letters: list[str] = []
    origin: list[int] = []
    for at, letter in enumerate(text):
        if letter == " " and letters and letters[-1] == " ":
            continue
        letters.append(letter)
        origin.append(at)
    return "".join(letters), origin


def in_source(source: str) -> Iterator[Found]:
    """Yields what comments, strings and names of Python source hold."""
    comments: list[tuple[int, str]] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.STRING:
            yield from in_prose(token.string, token.start[0])
        elif token.type == tokenize.COMMENT:
            if comments and comments[-1][0] + comments[-1][1].count("\n") + 1 == token.start[0]:
                line, text = comments[-1]
                comments[-1] = (line, f"{text}\n{token.string}")
            else:
                comments.append((token.start[0], token.string))
    for line, text in comments:
        yield from in_prose(text, line)
    for line, name in _names(ast.parse(source)):
        yield from in_name(name, line)


def in_name(name: str, line: int = 0, unwanted: Set[str] = NAMES) -> Iterator[Found]:
    """Yields the unwanted parts of a name."""
    for part in _PARTS.findall(name):
        if part.lower() in unwanted:
            yield Found(line, name, "the term of the field")


def _names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


EXEMPT = {
    "CONTRIBUTING.md",  # quotes the rule
    "tests/tidy/word_list.py",
    "tests/tidy/test_english.py",
}


def in_file(path: Path) -> list[Found]:
    """Returns what a file of this repository holds of the list."""
    name = name_of(path)
    if name in EXEMPT or path.suffix not in (".py", ".md"):
        return []
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        found = list(in_prose(text))
    else:
        found = [*in_source(text), *in_name(path.stem, unwanted=FILE_NAMES)]
    return sorted(set(found))


def main() -> int:
    folders = tuple(sys.argv[1:])
    count = 0
    for path in files():
        if not folders or name_of(path).startswith(folders):
            for line, word, better in in_file(path):
                count += 1
                sys.stdout.write(f"{path.relative_to(ROOT)}:{line}: {word!r} -> {better}\n")
    sys.stdout.write(f"{count} found\n")
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main())
