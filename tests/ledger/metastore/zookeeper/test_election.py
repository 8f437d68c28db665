"""The election of the auditor on a real ZooKeeper, beside candidates that kazoo makes as Apache's
do: EPHEMERAL_SEQUENTIAL nodes with protobuf text."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager

import pytest
import trio
from kazoo.client import KazooClient

from ledger.metastore.election import AuditorElection, Term, votes_in_order
from ledger.metastore.zookeeper.address import parse_address
from ledger.metastore.zookeeper.store import ZooKeeperStore, open_zookeeper
from tests.zookeeper import RunningZooKeeper

from .proxy import open_proxy
from .steps import LONG_MS, PATIENCE_S, SHORT_MS, expire, in_thread

pytestmark = pytest.mark.zookeeper

PATH = "/ledgers/underreplication/auditorelection"
APACHES = b'bookieId: "10.0.0.9:3181"\n'


@contextmanager
def kazoo(server: RunningZooKeeper) -> Iterator[KazooClient]:
    client = KazooClient(hosts=server.address, timeout=20)
    client.start()
    try:
        yield client
    finally:
        client.stop()
        client.close()


def vote(client: KazooClient, uri: str) -> str:
    """Makes the vote of an Apache auditor."""
    prefix = f"{parse_address(uri).chroot}{PATH}/V_"
    path: str = client.create(prefix, APACHES, ephemeral=True, sequence=True, makepath=True)
    return path


def election_on(store: ZooKeeperStore) -> AuditorElection:
    return AuditorElection(store, "/ledgers", random.Random(1))


class Standing:
    """A candidate of ours in a task."""

    def __init__(self, election: AuditorElection) -> None:
        self.election = election
        self.terms: list[Term] = []
        self.changed = trio.Event()

    async def run(self) -> None:
        while True:
            async with self.election.elected("b1") as term:
                self.terms.append(term)
                self.changed.set()
                await term.wait_over()

    async def wait_term(self, count: int) -> Term:
        with trio.fail_after(PATIENCE_S):
            while len(self.terms) < count:
                self.changed = trio.Event()
                await self.changed.wait()
        return self.terms[-1]


async def wait_votes(store: ZooKeeperStore, count: int) -> list[str]:
    with trio.fail_after(PATIENCE_S):
        async with aclosing(store.watch_children(PATH)) as lists:
            async for names in lists:
                if len(votes_in_order(names)) == count:
                    return votes_in_order(names)
    raise AssertionError("a watch does not end")


@asynccontextmanager
async def standing(store: ZooKeeperStore) -> AsyncIterator[Standing]:
    one = Standing(election_on(store))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(one.run)
        yield one
        nursery.cancel_scope.cancel()


async def test_ours_and_theirs_are_in_one_order(
    shared_zookeeper: RunningZooKeeper, zookeeper_uri: str
) -> None:
    with kazoo(shared_zookeeper) as theirs:
        first = vote(theirs, zookeeper_uri)
        assert first.endswith("/V_0000000000")
        async with open_zookeeper(zookeeper_uri, session_timeout_ms=LONG_MS) as store:
            election = election_on(store)
            assert await election.auditor() == "10.0.0.9:3181"
            async with standing(store) as ours:
                assert (await wait_votes(store, 2))[1] == "V_0000000001"
                last = vote(theirs, zookeeper_uri)
                assert last.endswith("/V_0000000002")
                assert not ours.terms
                theirs.delete(first)
                term = await ours.wait_term(1)
                assert await election.auditor() == "b1"
                chroot = parse_address(zookeeper_uri).chroot
                data, stat = theirs.get(chroot + term.vote)
                assert data.startswith(b'bookieId: "b1"\n# ')
                assert stat.ephemeralOwner == store._session.session_id
                assert theirs.get(chroot + PATH)[0] == b'bookieId: "b1"\n'
                # Its session ends: theirs is next, and ours stands again behind it.
                await expire(store, shared_zookeeper)
                with trio.fail_after(PATIENCE_S):
                    await term.wait_over()
                assert await wait_votes(store, 2) == ["V_0000000002", "V_0000000003"]
                assert await election.auditor() == "10.0.0.9:3181"
                assert len(ours.terms) == 1
                theirs.delete(last)
                assert (await ours.wait_term(2)).vote == f"{PATH}/V_0000000003"
            assert theirs.get_children(chroot + PATH) == []


async def test_a_vote_whose_response_was_lost_is_the_only_one(
    shared_zookeeper: RunningZooKeeper, zookeeper_uri: str
) -> None:
    async with (
        open_proxy(shared_zookeeper.address) as proxy,
        open_zookeeper(
            zookeeper_uri.replace(shared_zookeeper.address, proxy.address),
            session_timeout_ms=LONG_MS,
        ) as store,
        open_zookeeper(zookeeper_uri, session_timeout_ms=LONG_MS) as other,
    ):
        await other.create(f"{PATH}/other", b"")
        proxy.hold_answers()
        async with standing(store) as ours:
            with trio.fail_after(PATIENCE_S):
                await proxy.answers_held.wait()
            await proxy.break_all()
            term = await ours.wait_term(1)
            assert await wait_votes(other, 1) == [term.vote.rpartition("/")[2]]
        assert await other.children(PATH) == ["other"]


async def test_the_auditor_hands_over_when_it_is_silent_and_after_the_server_was_killed(
    zookeeper_server: RunningZooKeeper,
) -> None:
    uri = zookeeper_server.uri
    async with (
        open_proxy(zookeeper_server.address) as proxy,
        open_zookeeper(
            uri.replace(zookeeper_server.address, proxy.address), session_timeout_ms=SHORT_MS
        ) as cut,
        open_zookeeper(uri, session_timeout_ms=LONG_MS) as store,
        standing(cut) as first,
    ):
        term = await first.wait_term(1)
        async with standing(store) as second:
            await wait_votes(store, 2)
            zookeeper_server.kill()
            await in_thread(zookeeper_server.start)
            assert await election_on(store).auditor() == "b1"
            assert not second.terms, "a restart of the server ended no session"
            proxy.is_refusing = True  # from here on the auditor is cut off
            await proxy.break_all()
            await second.wait_term(1)
            assert not term.is_over, "it cannot know"
            proxy.is_refusing = False
            with trio.fail_after(PATIENCE_S):
                await term.wait_over()
            assert len(await wait_votes(store, 2)) == 2
