"""Whose turn it is: items of many owners, taken in turn, so that none waits behind another's heap.

An owner whose item cannot be taken now steps aside until it says that it can.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

OwnerT = TypeVar("OwnerT")
ItemT = TypeVar("ItemT")


class FairQueue(Generic[OwnerT, ItemT]):
    """One item of each owner, then the next of each; the items of one owner keep their order.
    Owners are hashable."""

    def __init__(self) -> None:
        self.count = 0
        """Items of all owners."""
        self._items: dict[OwnerT, deque[ItemT]] = {}
        self._ring: deque[OwnerT] = deque()
        """Owners with items, each once, the next one first; without those that stepped aside."""
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
        """The next item of the next owner that may go; None if there is none. The others step
        aside and need `resume`."""
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
        """It may go again, if it had stepped aside; how many items it came back with."""
        if owner not in self._aside:
            return 0
        del self._aside[owner]
        self._ring.append(owner)
        return len(self._items[owner])

    def drop(self, owner: OwnerT) -> int:
        """Forgets all items of an owner that is gone; returns how many. Costs a look at all
        owners."""
        items = self._items.pop(owner, None)
        if items is None:
            return 0
        if owner in self._aside:
            del self._aside[owner]
        else:
            self._ring.remove(owner)
        self.count -= len(items)
        return len(items)
