"""Writes docs/configuration.md from the settings themselves: `python -m tools.docs.configuration`.

The test beside it compares; whoever adds a setting runs this.
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

Generated from the code by `make docs`; a test keeps it true.

What belongs to a ledger or a stream (quorums, digest, retention) is no setting of a process: it is
given at creation and lives in metadata. See [the policy of a namespace](#a-namespace) below.

## A bookie

A TOML file given to `ledgerstream bookie run --config FILE`. Later sources win: defaults, the file,
the environment (`LEDGERSTREAM_` and the name in capitals), flags. An unknown name is an error.

"""
_WITHOUT = """
### Settings of Apache's bookie without a counterpart

Those that tuning guides and operators name; the others above say which of Apache's they are.

"""
_CLIENT = """
## A client

Fields of `ledger.options.ClientOptions`, an argument of `LedgerClient`.

| Option | Default | What it does |
|---|---|---|
"""
_NAMESPACE = """
## A namespace

The policy that streams of a namespace follow; `ledgerstream namespace set` changes it, and
running writers follow.

| Property | Default | What it does |
|---|---|---|
"""
_POLICY_MEANING = {
    "ensemble_size": "bookies a segment is spread over",
    "write_quorum": "copies of each entry",
    "ack_quorum": "copies that must be synced before an append is confirmed",
    "digest_type": "checksum of entries: CRC32C, CRC32, HMAC or DUMMY (none)",
    "roll_ms": "age at which a segment is sealed and the next begun",
    "roll_bytes": "size at which a segment is sealed and the next begun",
    "retention_ms": "sealed segments whose newest record is older are dropped; None keeps all",
    "retention_bytes": "oldest sealed segments beyond so many bytes (of all partitions together) "
    "are dropped; None keeps all",
    "retention_cursors": "names of cursors; what one of them has not passed is kept however old",
    "trash_ms": "how long what was truncated or deleted can be brought back; 0: not at all",
    "placement": "patterns of bookie ids, separated by commas, that are preferred (`rack1-*`)",
    "record_bytes_max": "largest record, with its key and headers",
    "streams_max": "streams the namespace may have; None: any number",
    "bytes_per_s_max": "what the writer of each stream may append; more waits. None: no limit",
    "compression": "none, zstd or lz4",
    "batch_bytes": "a batch of records of this size is sent at once",
    "linger_ms": "how long a smaller batch may wait for more; 0 sends it at the end of the tick",
}


def _fields(path: str, class_name: str) -> list[tuple[str, str, str]]:
    """Name, source of the default, and the docstring below it, of each field of a class."""
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
    """The text of docs/configuration.md."""
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
    """`32 * 1024 * 1024` and `256 << 20` as a number people read."""
    if all(c in "0123456789_ *<" for c in default):
        return f"{eval(default):,}"  # digits and two operators, from our own source
    if default == "RECORD_BYTES_MAX":
        return f"{RECORD_BYTES_MAX:,}"
    return {"()": "none", "''": "none"}.get(default, default.strip("'"))


if __name__ == "__main__":
    DOCUMENT.write_text(document(), encoding="utf-8")
