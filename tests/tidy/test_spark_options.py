"""docs/spark.md has every option as the code has it."""

from __future__ import annotations

from tools.docs.spark_options import DOCUMENT, document


def test_the_tables_of_options_are_up_to_date() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert text == document(text), "run `make docs`"


def test_a_changed_table_is_noticed() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    changed = text.replace("| `minTasks` |", "| `minimumTasks` |")
    assert changed != text
    assert document(changed) == text
