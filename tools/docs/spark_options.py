"""Writes the tables of options in docs/spark.md: `python -m tools.docs.spark_options`.

A test checks that the tables are up to date. To be run after adding an option.
"""

from __future__ import annotations

import re

from connectors.spark.options.table import (
    READ_OPTIONS,
    SECURITY_OPTIONS,
    WRITE_OPTIONS,
    AppliesTo,
    Option,
)
from tests.tidy.checkout import ROOT

DOCUMENT = ROOT / "docs" / "spark.md"
TABLES = {"read": READ_OPTIONS, "write": WRITE_OPTIONS, "security": SECURITY_OPTIONS}
_ONLY = {
    "read": {AppliesTo.BATCH: "`read` only: ", AppliesTo.STREAMING: "`readStream` only: "},
    "write": {AppliesTo.BATCH: "`write` only: ", AppliesTo.STREAMING: "`writeStream` only: "},
}


def document(text: str) -> str:
    """Returns the text with up-to-date tables."""
    for name, options in TABLES.items():
        begin, end = f"<!-- options: {name} -->\n", "<!-- end -->"
        assert text.count(begin) == 1, f"docs/spark.md has no marker for the options to {name}"
        rows = "".join(_row(name, option) for option in options)
        table = f"{begin}| Option | Default | |\n|---|---|---|\n{rows}{end}"
        before, _, rest = text.partition(begin)
        text = before + table + rest.partition(end)[2]
    return text


def _row(name: str, option: Option) -> str:
    default = option.default or "none"
    if re.fullmatch(r"[\w]+", default) and default not in {"none", "all"}:
        default = f"`{default}`"
    only = _ONLY.get(name, {}).get(option.applies_to, "")
    assert "|" not in option.meaning + option.forms + default
    return f"| `{option.name}` | {default} | {only}{option.meaning}. Accepted: {_plain(option)} |\n"


def _plain(option: Option) -> str:
    """Returns the accepted forms, with stars escaped so that they do not mean emphasis."""
    if "`" in option.forms:
        return option.forms
    return option.forms.replace("*", r"\*")


if __name__ == "__main__":
    DOCUMENT.write_text(document(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
