"""Writes docs/configuration.md from the settings themselves: `python -m tools.docs.configuration`.

A test checks that the document is up to date. To be run after adding a setting.
"""

from __future__ import annotations

import ast

from bookie.config import BookieConfig
from ledger.runtime.config import settings_table
from stream.core.entry.format import RECORD_BYTES_MAX
from tests.tidy.checkout import ROOT, tree_of
from tools.docs import apache_settings

DOCUMENT = ROOT / "docs" / "configuration.md"

_HEAD = """\
# Settings

Generated from the code by `make docs`; a test checks that it is up to date.

Properties of a ledger or a stream (quorums, digest, retention) are not settings of a process: they
are given at creation and stored in metadata. See [the policy of a namespace](#a-namespace) below.

## A bookie

The settings of a TOML file for `ledgerstream bookie run --config FILE`. Later sources take
precedence: defaults, the file, the environment (`LEDGERSTREAM_` and the name in upper case). Sizes
and durations are numbers of their unit, or text like `"64MB"`, `"10s"`, `"7d"`. An unknown name is
an error.

"""
_WITHOUT = """
### Settings of Apache's bookie without a counterpart

These are the settings that tuning guides and operators mention. The settings above name their
counterparts.

"""
_CLIENT = """
## A client

The fields of `ledger.options.ClientOptions`, an argument of `LedgerClient`.

| Option | Default | What it does |
|---|---|---|
"""
_NAMESPACE = """
## A namespace

The policy of the streams of a namespace. `ledgerstream namespace set` changes it, and running
writers apply the change.

| Property | Default | What it does |
|---|---|---|
"""
_POLICY_MEANING = {
    "ensemble_size": "number of bookies over which a segment is spread",
    "write_quorum": "copies of each entry",
    "ack_quorum": "copies that must be synced before an append is confirmed",
    "digest_type": "checksum of entries: CRC32C, CRC32, HMAC or DUMMY (none)",
    "roll_ms": "age at which a segment is sealed and the next one begins",
    "roll_bytes": "size at which a segment is sealed and the next one begins",
    "retention_ms": "sealed segments whose newest record is older are dropped; None keeps all",
    "retention_bytes": "limit of stored bytes (over all partitions) above which the oldest sealed "
    "segments are dropped; None keeps all",
    "retention_cursors": "names of cursors; records that one of them has not passed are kept",
    "trash_ms": "how long truncated or deleted records can be restored; 0: not at all",
    "placement": "patterns of bookie ids, separated by commas, that are preferred (`rack1-*`)",
    "record_bytes_max": "largest record, with its key and headers",
    "streams_max": "maximum number of streams in the namespace; None: no limit",
    "bytes_per_s_max": "rate to which the writer of each stream is throttled; None: no limit",
    "compression": "none, zstd or lz4",
    "batch_bytes": "a batch of records of this size is sent at once",
    "linger_ms": "how long a smaller batch waits for more; 0 sends it at the end of the tick",
    "placement_policy": "`rack`, `region` or `zone` spreads the copies of each entry over them,"
    " too: [operations.md](operations.md#placement)",
    "placement_min": "how many racks, regions or zones the copies of each entry must be in; 0 is 2",
    "placement_enforce": "no segment is created, and no bookie replaced, that breaks the minimum",
}


def _fields(path: str, class_name: str) -> list[tuple[str, str, str]]:
    """Returns the name, the source of the default, and the docstring of each field of a class."""
    for node in tree_of(ROOT / path).body:
        if isinstance(node, ast.ClassDef) and node.name == class_name:
            found = []
            for field, below in zip(node.body, [*node.body[1:], None], strict=True):
                if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
                    continue
                default = ast.unparse(field.value) if field.value else "required"
                meaning = ""
                if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                    meaning = " ".join(str(below.value.value).split())
                found.append((field.target.id, default, meaning))
            return found
    raise AssertionError(f"no class {class_name} in {path}")


def document() -> str:
    """Returns the text of docs/configuration.md."""
    lines = [_HEAD, settings_table(BookieConfig), _WITHOUT, apache_settings.table()]
    lines.append(_CLIENT)
    for name, default, meaning in _fields("ledger/options.py", "ClientOptions"):
        lines.append(f"| `{name}` | {_product(default)} | {meaning} |\n")
    lines.append(_NAMESPACE)
    for name, default, _ in _fields("stream/core/metadata/namespaces.py", "NamespaceMetadata"):
        if name not in {"name", "created_ms"}:
            lines.append(f"| `{name}` | {_product(default)} | {_POLICY_MEANING[name]} |\n")
    return "".join(lines)


def _product(default: str) -> str:
    """Returns a default as readers expect it: `256 << 20` becomes a number with separators."""
    if all(c in "0123456789_ *<" for c in default):
        return f"{eval(default):,}"  # only digits and operators, from this repository's source
    if default == "RECORD_BYTES_MAX":
        return f"{RECORD_BYTES_MAX:,}"
    return {"()": "none", "''": "none"}.get(default, default.strip("'"))


if __name__ == "__main__":
    DOCUMENT.write_text(document(), encoding="utf-8")
