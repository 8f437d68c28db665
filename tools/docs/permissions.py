"""Writes the tables of operations in docs/permissions.md: `python -m tools.docs.permissions`.

A test checks that the tables are up to date. To be run after adding an operation.
"""

from __future__ import annotations

from typing import Final

from bookie.core.operations import (
    HTTP_OPERATIONS,
    WIRE_OPERATIONS,
    HttpOperation,
    WireOperation,
    needed_role,
)
from ledger.core.permissions import Grant, Role
from ledger.metastore.node_kinds import NODE_KINDS, NOTHING, SHARED, Right
from tests.tidy.checkout import ROOT

DOCUMENT = ROOT / "docs" / "permissions.md"
_ROLES: Final = tuple(Role)
_NAMESPACE: Final = "demo"


def document(text: str) -> str:
    """Returns the text with up-to-date tables."""
    for name, table in (("wire", _wire()), ("http", _http()), ("metadata", _metadata())):
        begin, end = f"<!-- operations: {name} -->\n", "<!-- end -->"
        assert text.count(begin) == 1, f"docs/permissions.md has no marker for {name}"
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}{table}{end}{rest.partition(end)[2]}"
    return text


def _wire() -> str:
    rows = "".join(map(_wire_row, WIRE_OPERATIONS))
    return _table(("Request", "Protocol", "What it does"), rows)


def _wire_row(one: WireOperation) -> str:
    versions = " and ".join(f"v{version}" for version in one.versions)
    on_namespace, without = needed_role(one, _NAMESPACE), needed_role(one, None)
    cells = "".join(
        f" {'yes' if _has(role, on_namespace) or _has(role, without) else '-'} |"
        for role in (None, *_ROLES)
    )
    return f"| {one.name} | {versions} | {one.meaning} |{cells}\n"


def _http() -> str:
    rows = "".join(map(_http_row, HTTP_OPERATIONS))
    return _table(("Request",), rows)


def _http_row(one: HttpOperation) -> str:
    cells = "".join(f" {'yes' if _has(role, one.needs) else '-'} |" for role in (None, *_ROLES))
    return f"| `{one.method} {one.path}` |{cells}\n"


def _metadata() -> str:
    rows = "".join(
        f"| {one.name} | `{one.sample.format(root='/ledgers')}` | {_rights(NOTHING)} |"
        f" {_rights(one.clients)} | {_rights(SHARED)} |\n"
        for one in NODE_KINDS
    )
    names = ("Node", "For example", "no credentials", "clients", "owners")
    return f"| {' | '.join(names)} |\n|{'---|' * len(names)}\n{rows}"


def _rights(rights: Right) -> str:
    return ", ".join(str(one.name).lower() for one in Right if one in rights) or "-"


def _table(columns: tuple[str, ...], rows: str) -> str:
    names = (*columns, "no role", *(role.value for role in _ROLES))
    return f"| {' | '.join(names)} |\n|{'---|' * len(names)}\n{rows}"


def _has(role: Role | None, needs: Role | None) -> bool:
    """Returns whether a user with only this role may do what needs another."""
    if needs is None:
        return True
    if role is None:
        return False
    namespace = _NAMESPACE if needs.is_of_namespace else None
    return Grant("user", role, _NAMESPACE if role.is_of_namespace else "").gives(needs, namespace)


if __name__ == "__main__":
    DOCUMENT.write_text(document(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
