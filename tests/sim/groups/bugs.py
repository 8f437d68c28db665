"""Bugs to plant in consumer groups, so that their simulation itself is tested."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest import mock

from stream.consuming.assigned_partition import AssignedPartition
from stream.consuming.consumer import Consumer
from stream.consuming.cursor import Cursor
from stream.consuming.membership import Membership
from stream.core.metadata.cursors import CursorMetadata
from stream.core.position import Position


async def _overwrite(self: Cursor, position: Position, *, is_release: bool = False) -> bool:
    """A commit that finds another version is made again over it."""
    del position, is_release
    slot = await self._cursors.read_slot(self._namespace, self._metadata, self.name)
    assert slot.version is not None
    self._version = slot.version
    return False


def _hasty(self: Consumer, held: AssignedPartition, to: Position, epoch: int) -> None:
    """Handed out is taken for handled."""
    held.note_handed_out(to)
    held.handled(to, epoch)


async def _nothing(self: Membership) -> None:
    """A member that could not say farewell stays."""


async def _free(self: AssignedPartition, cursor: CursorMetadata) -> bool:
    """Nobody waits for the member that has a partition."""
    del self, cursor
    return False


def _same_epoch(self: CursorMetadata, holder: str, token: str, now_ms: int) -> CursorMetadata:
    """A new holder continues at the epoch of the one before."""
    return replace(self, holder=holder, token=token, changed_ms=now_ms)


GROUP_BUGS: dict[str, tuple[type, str, Callable[..., object]]] = {
    "commits-over-others": (Cursor, "_look_again", _overwrite),
    "handed-out-is-handled": (Consumer, "_hand_out", _hasty),
    "no-late-farewell": (Membership, "remove_eventually", _nothing),
    "takes-from-the-living": (AssignedPartition, "_is_held_by_other", _free),
    "epoch-kept": (CursorMetadata, "acquired", _same_epoch),
}


@contextmanager
def group_bug_planted(name: str | None) -> Iterator[None]:
    if name is None:
        yield
        return
    owner, attribute, bug = GROUP_BUGS[name]
    with mock.patch.object(owner, attribute, bug):
        yield
