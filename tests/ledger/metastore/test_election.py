"""The election of the auditor: its nodes, damaged ones, and hand-overs, on all drivers."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager

import pytest
import trio
import trio.testing
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st

from ledger.errors import InvalidArgument, MetadataCorrupt
from ledger.metastore.base import Change, MetadataStore, Node
from ledger.metastore.election import (
    AuditorElection,
    Term,
    decode_vote,
    encode_vote,
    votes_in_order,
)
from ledger.proto.data_formats_pb2 import AuditorVoteFormat

from .conftest import OpenSession

PATH = "/ledgers/underreplication/auditorelection"
PATIENCE_S = 30


def election_on(store: MetadataStore, seed: int = 1) -> AuditorElection:
    return AuditorElection(store, "/ledgers", random.Random(seed))


@asynccontextmanager
async def vote_of(store: MetadataStore, data: bytes) -> AsyncIterator[str]:
    """A vote of another program."""
    path = await store.create_numbered(f"{PATH}/V_", data)
    yield path
    await store.delete(path)


def test_votes_are_ordered_by_number_and_other_names_are_none() -> None:
    names = ["V_0000000010", "V_0000000009", "V_-2147483648", "V_x", "x", "V_", "v_0000000001"]
    names += ["V_0000000011x", "W_0000000001", "V_0000000011"]
    in_order = ["V_-2147483648", "V_0000000009", "V_0000000010", "V_0000000011"]
    assert votes_in_order(names) == in_order


@given(st.sets(st.integers(-(2**31), 2**31 - 1), max_size=30), st.randoms(use_true_random=False))
def test_the_order_is_that_of_the_numbers(numbers: set[int], rng: random.Random) -> None:
    names = [f"V_{number:010d}" for number in numbers]
    rng.shuffle(names)
    assert [int(name[2:]) for name in votes_in_order(names)] == sorted(numbers)


def test_the_bytes_of_votes_are_apaches_and_a_comment() -> None:
    assert encode_vote("10.0.0.1:3181") == b'bookieId: "10.0.0.1:3181"\n'
    ours = encode_vote("b\\1", "00ff00ff00ff00ff")
    assert ours == b'bookieId: "b\\\\1"\n# 00ff00ff00ff00ff\n'
    assert decode_vote("/V", ours) == "b\\1"
    assert text_format.Parse(ours.decode(), AuditorVoteFormat()).bookieId == "b\\1"


@pytest.mark.parametrize(
    "data",
    [b"", b"\xff\xfe", b"bookieId: b1", b'bookieId: "b1" more: 1', b"{" * 10_000, b'bookieId: ""'],
)
async def test_a_damaged_vote_is_an_error_that_names_it(
    open_session: OpenSession, data: bytes
) -> None:
    async with open_session() as store, vote_of(store, data) as path:
        with pytest.raises(MetadataCorrupt, match=rf"{path} cannot be read: .*Cure: "):
            await election_on(store).auditor()


async def test_a_damaged_vote_is_waited_for_like_any_other(open_session: OpenSession) -> None:
    async with open_session() as store, open_session() as other:
        election = election_on(store)
        elected = trio.Event()

        async def stand() -> None:
            async with election.elected("b1"):
                elected.set()
                await trio.sleep_forever()

        async with trio.open_nursery() as nursery:
            async with vote_of(other, b"\0damaged"):
                await other.create(f"{PATH}/no vote", b"")
                nursery.start_soon(stand)
                await wait_votes(other, 2)
                assert not elected.is_set()
            with trio.fail_after(PATIENCE_S):
                await elected.wait()
            assert await election.auditor() == "b1"
            nursery.cancel_scope.cancel()


async def wait_votes(store: MetadataStore, count: int) -> list[str]:
    with trio.fail_after(PATIENCE_S):
        async with aclosing(store.watch_children(PATH)) as lists:
            async for names in lists:
                votes = votes_in_order(names)
                if len(votes) == count:
                    return votes
    raise AssertionError("a watch does not end")


async def test_the_auditor_is_unknown_where_nobody_stands(open_session: OpenSession) -> None:
    async with open_session() as store:
        election = election_on(store)
        assert await election.auditor() is None
        with pytest.raises(InvalidArgument, match="bookie id 'no id!'"):
            async with election.elected("no id!"):
                raise AssertionError("it was elected")
        assert await store.children("/") == []


async def test_an_auditor_names_itself_and_its_leave_removes_the_vote(
    open_session: OpenSession,
) -> None:
    async with open_session() as store, open_session() as other:
        election = election_on(store)
        for number in range(2):
            async with election.elected("b1") as term:
                assert term.vote == f"{PATH}/V_{number:010}"
                assert not term.is_over
                assert await election_on(other).auditor() == "b1"
                assert (await other.get(PATH)).data == b'bookieId: "b1"\n'
                vote = await other.get(term.vote)
                assert vote.data.startswith(b'bookieId: "b1"\n# ')
            assert await other.children(PATH) == []
        assert (await other.get(PATH)).data == b'bookieId: "b1"\n'  # as Apache leaves it
        assert await election.auditor() is None


async def test_a_term_is_over_when_its_vote_is_deleted(open_session: OpenSession) -> None:
    async with open_session() as store, open_session() as operator:
        election = election_on(store)
        async with election.elected("b1") as term:
            await operator.delete(term.vote)
            with trio.fail_after(PATIENCE_S):
                await term.wait_over()
            assert term.is_over
        async with election.elected("b1") as again:
            assert again.vote > term.vote


async def test_candidates_follow_each_other_in_the_order_of_their_votes(
    open_session: OpenSession,
) -> None:
    order: list[str] = []
    send, receive = trio.open_memory_channel[tuple[str, Term]](0)

    async def stand(name: str, store: MetadataStore, scope: trio.CancelScope) -> None:
        with scope:
            async with election_on(store, int(name[1:])).elected(name) as term:
                order.append(name)
                await send.send((name, term))
                await trio.sleep_forever()

    names = [f"b{number}" for number in range(4)]
    scopes = {name: trio.CancelScope() for name in names}
    async with (
        open_session() as s0,
        open_session() as s1,
        open_session() as s2,
        open_session() as s3,
        trio.open_nursery() as nursery,
    ):
        stores = dict(zip(names, (s0, s1, s2, s3), strict=True))
        for count, name in enumerate(names, 1):
            nursery.start_soon(stand, name, stores[name], scopes[name])
            await wait_votes(stores["b0"], count)
        scopes["b2"].cancel()  # one in the middle leaves, and nobody else is elected
        await wait_votes(stores["b0"], 3)
        with trio.fail_after(PATIENCE_S):
            for name in ("b0", "b1", "b3"):
                assert (await receive.receive())[0] == name
                assert await election_on(stores["b2"]).auditor() == name
                if name == "b1":
                    await stores[name].aclose()  # its process ends, without a word
                else:
                    scopes[name].cancel()
        nursery.cancel_scope.cancel()
    assert order == ["b0", "b1", "b3"]


async def test_each_candidate_watches_only_its_own_vote_and_the_one_before() -> None:
    """On a list that everybody watches, each leave would wake all others."""
    from ledger.metastore.memory import MemoryStore, MemoryTree

    watched: list[tuple[str, str]] = []

    class Watching(MemoryStore):
        name = ""

        def watch(self, path: str) -> AsyncGenerator[Node | None, None]:
            watched.append((self.name, path.rpartition("_")[2][-1]))
            return super().watch(path)

        def watch_children(self, path: str) -> AsyncGenerator[list[str], None]:
            raise AssertionError(f"{self.name} watches the list {path}")

    tree = MemoryTree()
    async with trio.open_nursery() as nursery:
        for number in range(5):
            store = Watching(tree, lambda: 1)
            store.name = f"b{number}"

            async def stand(store: Watching = store) -> None:
                async with election_on(store).elected(store.name):
                    await trio.sleep_forever()

            nursery.start_soon(stand)
            await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert sorted(watched) == [("b0", "0")] + [
        (f"b{number}", str(one)) for number in range(1, 5) for one in (number - 1, number)
    ]


async def test_a_hand_over_wakes_only_the_next_candidate() -> None:
    """With a thousand candidates, each death would else cost a thousand lists of a thousand."""
    from ledger.metastore.memory import MemoryStore, MemoryTree

    calls: list[str] = []

    class Counting(MemoryStore):
        name = ""

        async def get(self, path: str) -> Node:
            calls.append(f"{self.name} get")
            return await super().get(path)

        async def children(self, path: str) -> list[str]:
            calls.append(f"{self.name} children")
            return await super().children(path)

        async def transaction(self, changes: Sequence[Change]) -> None:
            calls.append(f"{self.name} transaction")
            await super().transaction(changes)

    tree = MemoryTree()
    stores = []
    async with trio.open_nursery() as nursery:
        for number in range(30):
            store = Counting(tree, lambda: 1)
            store.name = f"b{number}"
            stores.append(store)

            async def stand(store: Counting = store) -> None:
                async with election_on(store).elected(store.name):
                    await trio.sleep_forever()

            nursery.start_soon(stand)
            await trio.testing.wait_all_tasks_blocked()
        calls.clear()
        await stores[0].aclose()
        await trio.testing.wait_all_tasks_blocked()
        assert calls == ["b1 children", "b1 transaction"]
        calls.clear()
        await stores[15].aclose()  # neither the auditor nor the next one
        await trio.testing.wait_all_tasks_blocked()
        assert calls == ["b16 children"]
        nursery.cancel_scope.cancel()
