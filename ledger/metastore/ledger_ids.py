"""Generates ledger ids by the counters of Apache's clients, so that no two ids are equal.

Short ids come from the counter `idgen/ID-`. Once they are exhausted, the node `idgen-long` exists
permanently, and an id consists of the number of its newest child `HOB-<ten digits>`, followed by 31
bits counted there.
"""

from __future__ import annotations

import re

from ledger.errors import InvalidArgument, MetadataConflict, NodeExists, NoSuchNode
from ledger.metastore.base import MetadataStore
from ledger.metastore.layout import SHORT_LEDGER_ID_END, Layout

HIGH_BITS_MAX = 2**31 - 1
_COUNTER = "ID-"
_HIGH_BITS = re.compile(r"HOB-([0-9]{1,10})\Z")
_TRIES_MAX = 10
"""Each lost try means that 2^31 ids were taken meanwhile."""


class LedgerIds:
    """The counters below `root`."""

    def __init__(self, store: MetadataStore, root: str) -> None:
        self._store = store
        self._root = root
        self._long_path = f"{root}/idgen-long"
        self._is_long = self._has_looked = False

    async def next_id(self, layout: Layout, *, beyond: int = -1) -> int:
        """Returns an id that no call returned before, in this process or another.

        It is greater than `beyond`, and so are all later ones. Raises InvalidArgument if the layout
        has no ids left.
        """
        if layout is Layout.FLAT:
            path = f"{self._root}/{_COUNTER}"
            return self._short(layout, await self._store.next_id(path, beyond=beyond))
        if layout is Layout.LEGACY_HIERARCHICAL:
            return self._short(layout, await self._next_short(beyond))
        if not self._has_looked:
            # Asked once: others may still take short ids, which are never equal to long ones.
            self._is_long = await self._exists(self._long_path)
            self._has_looked = True
        if not self._is_long:
            short = beyond < SHORT_LEDGER_ID_END
            counted = await self._next_short(beyond if short else -1)
            if short and _is_below_end(counted):
                return counted
            await self._make(self._long_path)
            self._is_long = True
        return await self._next_long(beyond)

    async def _next_short(self, beyond: int = -1) -> int:
        return await self._store.next_id(f"{self._root}/idgen/{_COUNTER}", beyond=beyond)

    @staticmethod
    def _short(layout: Layout, counted: int) -> int:
        if not _is_below_end(counted):
            raise InvalidArgument(
                f"the {SHORT_LEDGER_ID_END} ledger ids of the layout {layout.value} are exhausted"
                ". Cure: choose ids yourself, or start a cluster with the layout hierarchical"
            )
        return counted

    async def _next_long(self, beyond: int = -1) -> int:
        needed, low_bits = (beyond >> 32, beyond & 0xFFFFFFFF) if beyond >= 0 else (0, -1)
        for _ in range(_TRIES_MAX):
            high_bits = await self._newest_high_bits()
            if high_bits < needed:
                await self._make(f"{self._long_path}/HOB-{needed:010d}")
                continue
            path = f"{self._long_path}/HOB-{high_bits:010d}"
            if high_bits:
                behind = low_bits if high_bits == needed else -1
                counted = await self._store.next_id(f"{path}/{_COUNTER}", beyond=behind)
                if _is_below_end(counted):
                    return high_bits << 32 | counted
                if high_bits == HIGH_BITS_MAX:
                    raise InvalidArgument(f"all ledger ids below {self._long_path} are exhausted")
            # Exhausted nodes stay: deleting one, as others do, would reset its counter.
            await self._make(f"{self._long_path}/HOB-{high_bits + 1:010d}")
        raise MetadataConflict(f"no ledger id below {self._long_path} in {_TRIES_MAX} tries")

    async def _newest_high_bits(self) -> int:
        """Returns 0 if there is none yet. It must not be cached: counting below an older node that
        was deleted meanwhile would create it again, and return its ids a second time."""
        names = await self._store.children(self._long_path)
        found = (match for name in names if (match := _HIGH_BITS.match(name)))
        return max((int(match[1]) for match in found), default=0)

    async def _exists(self, path: str) -> bool:
        try:
            await self._store.get(path)
        except NoSuchNode:
            return False
        return True

    async def _make(self, path: str) -> None:
        try:
            await self._store.create(path, b"")
        except NodeExists:
            pass  # another client created it first


def _is_below_end(counted: int) -> bool:
    return 0 <= counted < SHORT_LEDGER_ID_END
