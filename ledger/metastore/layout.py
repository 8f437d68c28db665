"""Where ledgers are stored below the root of a cluster: Apache's four layouts, and the LAYOUT node.

Pure. The node names the Java class that made the cluster, and every program must follow it. An
unknown class or version is refused: a guess would show a cluster without ledgers, and bookies
delete the entries of ledgers that do not exist.
"""

from __future__ import annotations

import enum
import re

from ledger.errors import InvalidArgument, MetadataCorrupt

SHORT_LEDGER_ID_END = 2**31 - 1
"""Ids from here on use the long form in the hybrid layout; short generators end here."""

LEDGER_ID_MAX = 2**63 - 1
LAYOUT_FORMAT_VERSION = 2
_MANAGER_VERSION = 1
_PACKAGE = "org.apache.bookkeeper.meta."
_CLASS_NAME = re.compile(r"[A-Za-z0-9_$]+(\.[A-Za-z0-9_$]+)*\Z")


class Layout(enum.Enum):
    """A layout; the value is its name after `zk+` in a cluster address."""

    HIERARCHICAL = "hierarchical"
    """Two levels for ids below 2^31-1, four for the others: Apache's default."""

    LONG_HIERARCHICAL = "longhierarchical"
    LEGACY_HIERARCHICAL = "legacyhierarchical"
    FLAT = "flat"

    @property
    def class_name(self) -> str:
        """The Java class behind the layout, without its package."""
        return _CLASS_OF[self]

    @property
    def ledger_id_max(self) -> int:
        """The largest id that has a path."""
        if self is Layout.LEGACY_HIERARCHICAL:
            return 10**10 - 1  # ten digits
        return LEDGER_ID_MAX

    def path(self, root: str, ledger_id: int) -> str:
        """Returns the path of a ledger's metadata. Raises InvalidArgument."""
        if not 0 <= ledger_id <= self.ledger_id_max:
            raise InvalidArgument(
                f"ledger id {ledger_id} is not in 0..{self.ledger_id_max} (layout {self.value})"
            )
        if self is Layout.FLAT:
            return f"{root}/L{ledger_id:010d}"
        if self is Layout.LEGACY_HIERARCHICAL or (
            self is Layout.HIERARCHICAL and ledger_id < SHORT_LEDGER_ID_END
        ):
            digits = f"{ledger_id:010d}"
            return f"{root}/{digits[:2]}/{digits[2:6]}/L{digits[6:]}"
        digits = f"{ledger_id:019d}"
        return f"{root}/{digits[:3]}/{digits[3:7]}/{digits[7:11]}/{digits[11:15]}/L{digits[15:]}"

    def depth_below(self, name: str) -> int | None:
        """Returns the number of levels between the child `name` of the root and its ledgers; 0 if
        `name` is a ledger itself, None if it belongs to no ledger."""
        if self is Layout.FLAT:
            return 0 if _FLAT_LEAF.match(name) else None
        if _TOP_SHORT.match(name) and self is not Layout.LONG_HIERARCHICAL:
            return 2
        if _TOP_LONG.match(name) and self is not Layout.LEGACY_HIERARCHICAL:
            return 4
        return None


_CLASS_OF = {
    Layout.HIERARCHICAL: "HierarchicalLedgerManagerFactory",
    Layout.LONG_HIERARCHICAL: "LongHierarchicalLedgerManagerFactory",
    Layout.LEGACY_HIERARCHICAL: "LegacyHierarchicalLedgerManagerFactory",
    Layout.FLAT: "FlatLedgerManagerFactory",
}
_LAYOUT_OF_CLASS = {
    **{name: layout for layout, name in _CLASS_OF.items()},
    # Pulsar's own driver uses the paths of the hybrid layout.
    "PulsarLedgerManagerFactory": Layout.HIERARCHICAL,
}
_LAYOUT_OF_TYPE = {"flat": Layout.FLAT, "hierarchical": Layout.HIERARCHICAL}
"""Their names in the first version of the node, from before 2012."""

_TOP_SHORT = re.compile(r"[0-9]{2}\Z")
_TOP_LONG = re.compile(r"[0-9]{3}\Z")
_FLAT_LEAF = re.compile(r"L[0-9]{10,19}\Z")


def encode_layout(layout: Layout) -> bytes:
    """Returns the bytes that Apache's tools write for it."""
    return f"{LAYOUT_FORMAT_VERSION}\n{_PACKAGE}{layout.class_name}:{_MANAGER_VERSION}".encode()


def decode_layout(data: bytes) -> Layout:
    """Returns the layout that a LAYOUT node names. The package of the class is ignored: programs
    that bundle BookKeeper rename it. Raises MetadataCorrupt."""
    try:
        version, manager = data.decode("ascii").split("\n")[:2]
        name, _, manager_version = manager.strip().rpartition(":")
        if not _CLASS_NAME.match(name):
            raise ValueError(f"{name!r} is no name of a class")
        is_known = (int(version), int(manager_version)) in ((1, 1), (2, 1))
    except ValueError as error:  # UnicodeDecodeError is one
        raise MetadataCorrupt(f"LAYOUT {data[:200]!r} cannot be read: {error}") from error
    if not is_known:
        raise MetadataCorrupt(
            f"LAYOUT {data[:200]!r} has format {version} and manager version {manager_version}; "
            f"known are formats 1 and {LAYOUT_FORMAT_VERSION}, and manager version "
            f"{_MANAGER_VERSION}"
        )
    kinds = _LAYOUT_OF_CLASS if int(version) == LAYOUT_FORMAT_VERSION else _LAYOUT_OF_TYPE
    layout = kinds.get(name.rpartition(".")[2])
    if layout is None:
        raise MetadataCorrupt(
            f"the ledgers of this cluster are laid out by {name}, which this release does not "
            f"know; known are {', '.join(sorted(kinds))}"
        )
    return layout
