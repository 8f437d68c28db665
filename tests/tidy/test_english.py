"""Names and prose are standard English: none of the words in word_list.py stands anywhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tidy.checkout import files, name_of
from tests.tidy.word_list import FILE_NAMES, in_file, in_name, in_prose, in_source

_JUDGED = [path for path in files() if path.suffix in (".py", ".md")]


@pytest.mark.parametrize("path", _JUDGED, ids=name_of)
def test_names_and_prose_are_standard_english(path: Path) -> None:
    found = [f"line {line}: {word!r}; write: {better}" for line, word, better in in_file(path)]
    assert not found


def test_phrases_are_found_over_line_breaks_and_case() -> None:
    text = "The next\n    reader goes\n    on. Whoever asks, So Many."
    assert [(one.line, one.word) for one in sorted(in_prose(text))] == [
        (2, "goes on"),
        (3, "So Many"),
        (3, "Whoever"),
    ]


def test_parts_of_longer_words_are_not_found() -> None:
    assert not list(in_prose("The header, here, others; a shell; untold; tell-tale; there."))


def test_source_is_searched_in_comments_strings_and_names() -> None:
    source = (
        "def make_anew(whoever: int) -> None:\n"
        '    """Goes on."""\n'
        "    # reads for\n"
        "    # ever\n"
        "    story = goes_on(whoever)\n"
    )
    assert [(one.line, one.word) for one in sorted(in_source(source))] == [
        (1, "make_anew"),
        (1, "whoever"),
        (2, "Goes on"),
        (3, "for ever"),
        (5, "story"),
    ]


def test_a_file_name_has_a_list_of_its_own() -> None:
    assert list(in_name("held_adds", unwanted=FILE_NAMES))
    assert not list(in_name("held_adds"))
    assert not list(in_name("throttled_adds", unwanted=FILE_NAMES))
