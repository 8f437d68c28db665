"""The marks of ledgers that lack copies, as Apache lays them out."""

from __future__ import annotations

import random
from contextlib import aclosing

import pytest
import trio

from ledger.errors import InvalidArgument, MetadataCorrupt, MetadataUnavailable
from ledger.metastore.base import Check, Node
from ledger.metastore.memory import MemoryStore, MemoryTree
from ledger.metastore.underreplication import Mark, UnderreplicationStore
from ledger.metastore.underreplication_nodes import PeriodicCheck

BASE = "/ledgers/underreplication"
PATH_OF_7 = f"{BASE}/ledgers/0000/0000/0000/0007/urL0000000007"
LARGE = 2**63 - 1
PATH_OF_LARGE = f"{BASE}/ledgers/7fff/ffff/ffff/ffff/urL{LARGE}"


def opened(tree: MemoryTree | None = None) -> tuple[MemoryStore, UnderreplicationStore]:
    store = MemoryStore(tree or MemoryTree(), lambda: 0)
    return store, UnderreplicationStore(store, "/ledgers", lambda: 1234)


async def test_nodes_are_those_of_apache() -> None:
    store, marks = opened()
    async with store:
        await marks.mark(7, ["b1:3181"])
        await marks.mark(LARGE, [])
        assert (await store.get(f"{BASE}/LAYOUT")).data == b'type: "BASIC"\nversion: 1\n'
        assert (await store.get(PATH_OF_7)).data == b'replica: "b1:3181"\nctime: 1234\n'
        assert (await store.get(PATH_OF_LARGE)).data == b"ctime: 1234\n"
        async with marks.lock(7, "worker-1") as is_locked:
            assert is_locked
            data = (await store.get(f"{BASE}/locks/urL0000000007")).data
            assert data == b'bookieId: "worker-1"\n'
        await marks.set_enabled(False)
        assert (await store.get(f"{BASE}/disable")).data == b""
        await marks.set_lost_bookie_recovery_delay_s(300)
        assert (await store.get(f"{BASE}/lostBookieRecoveryDelay")).data == b"300"
        await marks.set_last_check(PeriodicCheck.ALL_LEDGERS)
        assert (await store.get(f"{BASE}/checkallledgersctime")).data == b"\x08\xd2\t"
        assert await marks.last_check_ms(PeriodicCheck.ALL_LEDGERS) == 1234
        assert await marks.last_check_ms(PeriodicCheck.PLACEMENT) == -1


async def test_a_mark_and_its_lock_are_deleted_together() -> None:
    store, marks = opened()
    async with store:
        await marks.mark(7, [])
        mark = await marks.read(7)
        assert mark is not None
        async with marks.lock(7, "worker-1") as is_locked:
            assert is_locked
            assert await marks.unmark(mark, unlocks=True)
            assert await marks.lock_owner(7) is None
            async with marks.lock(7, "worker-2") as is_locked:
                assert is_locked, "of a mark that was made since"
        assert await marks.read(7) is None


async def test_a_mark_is_deleted_though_its_lock_has_ended_with_a_session() -> None:
    store, marks = opened()
    async with store:
        await store.create("/ledger", b"")
        await marks.mark(7, [])
        mark = await marks.read(7)
        assert mark is not None
        async with marks.lock(7, "worker-1"):
            await store.delete(f"{BASE}/locks/urL0000000007")
            changed = Check("/ledger", 1)
            assert not await marks.unmark(mark, while_unchanged=changed, unlocks=True)
            assert await marks.read(7) == mark, "only the lock had gone"
            assert await marks.unmark(mark, while_unchanged=Check("/ledger", 0), unlocks=True)
        assert await marks.read(7) is None


async def test_a_second_mark_adds_bookies_and_the_same_one_changes_nothing() -> None:
    store, marks = opened()
    async with store:
        await marks.mark(7, ["b1:1"])
        await marks.mark(7, ["b1:1"])
        assert await marks.read(7) == Mark(7, ("b1:1",), 1234, 0)
        await marks.mark(7, ["b2:1", "b1:1"])
        assert await marks.read(7) == Mark(7, ("b1:1", "b2:1"), 1234, 1)
        assert await marks.read(8) is None


async def test_the_same_mark_made_again_while_a_worker_copies_the_ledger_stays() -> None:
    store, marks = opened()
    async with store:
        await marks.mark(7, ["b1:1", "b2:1"])
        async with marks.lock(7, "worker-1"):
            seen = await marks.read(7)
            assert seen is not None
            await marks.mark(7, ["b1:1"])
            assert not await marks.unmark(seen)
            assert await marks.read(7) == Mark(7, ("b1:1", "b2:1"), 1234, 1)


async def test_a_mark_made_again_meanwhile_stays() -> None:
    store, marks = opened()
    async with store:
        await marks.mark(7, ["b1:1"])
        old = await marks.read(7)
        assert old is not None
        await marks.mark(7, ["b2:1"])
        assert not await marks.unmark(old)
        new = await marks.read(7)
        assert new is not None
        assert await marks.unmark(new)
        assert await marks.unmark(new), "it is gone already"


async def test_a_mark_goes_only_while_the_ledger_is_unchanged_or_when_it_is_deleted() -> None:
    store, marks = opened()
    async with store:
        await store.create("/ledger", b"open")
        await marks.mark(7, ["b1:1"])
        mark = await marks.read(7)
        assert mark is not None
        await store.put("/ledger", b"closed")
        for version in (0, 2):
            assert not await marks.unmark(mark, while_unchanged=Check("/ledger", version))
            assert await marks.read(7) == mark
        assert await marks.unmark(mark, while_unchanged=Check("/ledger", 1))
        assert await marks.unmark(mark, while_unchanged=Check("/ledger", 1)), "it is gone already"
        await marks.mark(7, ["b1:1"])
        await store.delete("/ledger")
        assert await marks.unmark(mark, while_unchanged=Check("/ledger", 1))
        assert await marks.list() == []


async def test_the_list_is_that_of_the_marks_and_leaves_no_folders() -> None:
    chance = random.Random(5)
    store, marks = opened()
    async with store:
        ids = sorted({chance.getrandbits(chance.choice((3, 18, 40, 63))) for _ in range(200)})
        for ledger_id in ids:
            await marks.mark(ledger_id, ["b:1"])
        assert await marks.list() == ids
        chance.shuffle(ids)
        while ids:
            mark = await marks.read(ids.pop())
            assert mark is not None
            assert await marks.unmark(mark)
            assert await marks.list() == sorted(ids)
        assert await store.children(f"{BASE}/ledgers") == []


async def test_folders_that_an_interrupted_deletion_left_are_pruned() -> None:
    store, marks = opened()
    async with store:
        await marks.mark(7, ["b1:1"])
        await marks.mark(8, ["b1:1"])
        await store.delete(PATH_OF_7)
        assert await marks.list() == [7, 8], "folders count as marks"
        await marks.prune(7)
        await marks.prune(8)
        assert await marks.list() == [8]
        await store.delete(f"{BASE}/ledgers/0000/0000/0000/0008/urL0000000008")
        await store.delete(f"{BASE}/ledgers/0000/0000/0000/0008")
        await marks.mark(LARGE, [])
        await marks.prune_empty()
        assert await store.children(f"{BASE}/ledgers") == ["7fff"]
        assert await marks.read(LARGE) is not None


async def test_a_mark_beside_another_node_is_deleted_alone() -> None:
    store, marks = opened()
    async with store:
        await marks.mark(7, ["b1:1"])
        other = PATH_OF_7.replace("urL0000000007", "other")
        await store.create(other, b"")
        mark = await marks.read(7)
        assert mark is not None
        assert await marks.unmark(mark)
        assert await marks.read(7) is None
        assert (await store.get(other)).data == b""


async def test_one_worker_has_the_lock_and_takes_its_own_again() -> None:
    tree = MemoryTree()
    store, marks = opened(tree)
    other_store, other = opened(tree)
    async with store, other_store:
        async with marks.lock(7, "one") as mine, other.lock(7, "two") as theirs:
            assert (mine, theirs) == (True, False)
            assert await other.locked() == {7: "one"}
        assert await marks.lock_owner(7) is None, "only its holder deleted it"
        await store.create(f"{BASE}/locks/urL0000000007", b'bookieId: "one"\n', is_ephemeral=True)
        async with marks.lock(7, "one") as again:
            assert again


async def test_the_lock_of_another_session_survives_the_end_of_the_block() -> None:
    tree = MemoryTree()
    store, marks = opened(tree)
    other_store, other = opened(tree)
    async with store, other_store:
        async with marks.lock(7, "one"):
            await other_store.delete(f"{BASE}/locks/urL0000000007")  # as when the session ended
            await other_store.create(
                f"{BASE}/locks/urL0000000007", b'bookieId: "two"\n', is_ephemeral=True
            )
        assert await other.lock_owner(7) == "two"


async def test_damaged_nodes_are_named_and_not_changed() -> None:
    store, marks = opened()
    async with store:
        await store.create(PATH_OF_7, b"\xff{")
        await store.create(f"{BASE}/locks/urL0000000007", b"?")
        await store.create(f"{BASE}/lostBookieRecoveryDelay", b"soon")
        with pytest.raises(MetadataCorrupt, match=f"{PATH_OF_7} cannot be read.*Cure: delete"):
            await marks.read(7)
        with pytest.raises(MetadataCorrupt, match=PATH_OF_7):
            await marks.mark(7, ["b1:1"])
        assert await marks.list() == [7]
        assert (await store.get(PATH_OF_7)).data == b"\xff{"
        with pytest.raises(MetadataCorrupt, match="holds b'soon', which is no number of seconds"):
            await marks.lost_bookie_recovery_delay_s()
        async with marks.lock(7, "one") as is_locked:
            assert not is_locked, "an unknown worker holds it"
        assert await marks.locked() == {7: "unknown"}
        with pytest.raises(InvalidArgument, match="-1"):
            await marks.set_lost_bookie_recovery_delay_s(-1)
        with pytest.raises(InvalidArgument, match="ledger id"):
            await marks.read(-1)


async def test_another_layout_is_refused() -> None:
    store, marks = opened()
    async with store:
        await store.create(f"{BASE}/LAYOUT", b'type: "OTHER"\nversion: 1\n')
        with pytest.raises(MetadataCorrupt, match="'OTHER' version 1; known is BASIC version 1"):
            await marks.mark(7, ["b1:1"])
        assert await marks.list() == []


async def test_marks_and_settings_are_followed() -> None:
    store, marks = opened()
    async with store:
        with trio.fail_after(5):
            async with aclosing(marks.watch_any()) as changes:
                assert not await anext(changes)
                await marks.mark(7, [])
                assert await anext(changes)
            async with aclosing(marks.watch_enabled()) as enabled:
                assert await anext(enabled)
                await marks.set_enabled(False)
                assert not await anext(enabled)
                assert not await marks.is_enabled()
                await marks.set_enabled(True)
                await marks.set_enabled(True)
                assert await anext(enabled)
            async with aclosing(marks.watch_delay()) as delays:
                assert await anext(delays) is None
                await marks.set_lost_bookie_recovery_delay_s(5)
                assert await anext(delays) == 5
                await marks.set_lost_bookie_recovery_delay_s(5)
                assert await anext(delays) == 5, "the same value means: look now"


class ForgetfulStore(MemoryStore):
    """Loses some of the next reads."""

    losses = 0

    async def get(self, path: str) -> Node:
        if self.losses > 0:
            self.losses -= 1
            raise MetadataUnavailable("the request was lost")
        return await super().get(path)


@pytest.mark.parametrize("losses", [1, 5, 100])
async def test_a_lock_is_deleted_in_spite_of_lost_requests(
    losses: int, autojump_clock: trio.testing.MockClock
) -> None:
    async with ForgetfulStore(MemoryTree(), lambda: 0) as store:
        marks = UnderreplicationStore(store, "/ledgers", lambda: 1234)
        async with marks.lock(7, "one") as is_locked:
            assert is_locked
            store.losses = losses
        assert await store.children(f"{BASE}/locks") == []


async def test_a_process_that_stops_does_not_wait_long_for_a_lock(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with ForgetfulStore(MemoryTree(), lambda: 0) as store:
        marks = UnderreplicationStore(store, "/ledgers", lambda: 1234)
        begun_s = trio.current_time()
        with trio.CancelScope() as scope:
            async with marks.lock(7, "one"):
                store.losses = 10**6
                scope.cancel()
        assert trio.current_time() - begun_s < 5
