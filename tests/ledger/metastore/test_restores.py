"""The record of restores, and ids that continue behind what a history has lost."""

from __future__ import annotations

import pytest

from ledger.errors import MetadataCorrupt
from ledger.metastore.layout import Layout
from ledger.metastore.ledgers import LedgerStore
from ledger.metastore.memory import MemoryStore, MemoryTree
from ledger.metastore.restores import PATH, Restore, RestoreLog, is_protected

GOLDEN = (
    b'{"version": 1, "restores": [{"first_id": 5, "end_id": 9, "noticed_ms": 7, "bookie": "b:1", '
    b'"is_released": false}]}'
)
ONE = Restore(5, 9, 7, "b:1")


def store() -> MemoryStore:
    return MemoryStore(MemoryTree(), lambda: 0)


async def test_restores_are_recorded_once_and_released_in_order() -> None:
    async with store() as metadata:
        log = RestoreLog(metadata)
        assert await log.read() == ()
        assert await log.add(ONE) == (ONE,)
        assert (await metadata.get(PATH)).data == GOLDEN
        assert await log.add(Restore(6, 9, 8, "b:2")) == (ONE,)
        two = Restore(6, 12, 8, "b:2")
        assert await log.add(two) == (ONE, two)
        assert [is_protected((ONE, two), n) for n in (4, 5, 8, 11, 12)] == [
            False, True, True, True, False,
        ]  # fmt: skip
        released = await log.release(1)
        assert [each.is_released for each in released] == [True, False]
        assert [is_protected(released, n) for n in (5, 6, 11)] == [False, True, True]


async def test_several_restores_are_recorded_by_one_change() -> None:
    async with store() as metadata:
        log, other = RestoreLog(metadata), Restore(20, 21, 7, "b:1")
        assert await log.add(ONE, Restore(6, 7, 7, "b:1"), other, other) == (ONE, other)
        assert (await metadata.get(PATH)).version == 0


@pytest.mark.parametrize("data", [b"", b"{", b'{"version": 2}', b'{"version": 1, "restores": [1]}'])
async def test_a_record_that_cannot_be_read_is_an_error(data: bytes) -> None:
    async with store() as metadata:
        await metadata.create(PATH, data)
        with pytest.raises(MetadataCorrupt, match="/ledgerstream/restores"):
            await RestoreLog(metadata).read()


@pytest.mark.parametrize("layout", list(Layout))
async def test_ids_continue_behind_any_that_is_given(layout: Layout) -> None:
    async with store() as metadata:
        ledgers = LedgerStore(metadata, layout=layout)
        assert await ledgers.next_ledger_id() == 0
        assert await ledgers.next_ledger_id(beyond=41) == 42
        assert await ledgers.next_ledger_id(beyond=7) == 43
        assert await ledgers.next_ledger_id() == 44
        if layout in (Layout.HIERARCHICAL, Layout.LONG_HIERARCHICAL):
            long_id = 5 << 32 | 9
            assert await ledgers.next_ledger_id(beyond=long_id) == long_id + 1
            assert await ledgers.next_ledger_id() == long_id + 2
