"""Takes items of many owners in turn (round robin), so that no owner waits for all of another's.

An owner whose item cannot be taken now is skipped until it is resumed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

OwnerT = TypeVar("OwnerT")
ItemT = TypeVar("ItemT")


class FairQueue(Generic[OwnerT, ItemT]):
    """A queue that takes one item of each owner, then the next of each, in each owner's order.
    Owners are hashable."""

    def __init__(self) -> None:
        self.count = 0
        """The number of items of all owners."""
        self._items: dict[OwnerT, deque[ItemT]] = {}
        self._ring: deque[OwnerT] = deque()
        """Owners with items, each once, the next one first; without those that are skipped."""
        self._aside: dict[OwnerT, None] = {}

    def add(self, owner: OwnerT, item: ItemT) -> None:
        items = self._items.get(owner)
        if items is None:
            self._items[owner] = deque((item,))
            self._ring.append(owner)
        else:
            items.append(item)
        self.count += 1

    def take(self, may_go: Callable[[OwnerT], bool]) -> ItemT | None:
        """Returns the next item of the next owner that may go, or None. The owners passed over are
        skipped until `resume`."""
        while self._ring:
            owner = self._ring.popleft()
            if not may_go(owner):
                self._aside[owner] = None
                continue
            items = self._items[owner]
            item = items.popleft()
            if items:
                self._ring.append(owner)
            else:
                del self._items[owner]
            self.count -= 1
            return item
        return None

    def count_of(self, owner: OwnerT) -> int:
        items = self._items.get(owner)
        return 0 if items is None else len(items)

    def resume(self, owner: OwnerT) -> int:
        """Ends the skipping of an owner, and returns how many items it has waiting."""
        if owner not in self._aside:
            return 0
        del self._aside[owner]
        self._ring.append(owner)
        return len(self._items[owner])

    def drop(self, owner: OwnerT) -> int:
        """Forgets all items of an owner that is gone, and returns how many. The cost is linear in
        the number of owners."""
        items = self._items.pop(owner, None)
        if items is None:
            return 0
        if owner in self._aside:
            del self._aside[owner]
        else:
            self._ring.remove(owner)
        self.count -= len(items)
        return len(items)
