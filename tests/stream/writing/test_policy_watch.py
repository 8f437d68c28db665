"""Running writers follow the settings of their namespace."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest
import trio

from bookie.testing import SimCluster, simulate
from ledger.errors import InvalidArgument
from ledger.metastore.base import MetadataStore, Node
from stream import Namespace, StreamWriter, Ticket
from stream.store.streams import namespace_path
from tests.stream.sim_namespace import sim_namespace

SOON_S = 5.0


def test_new_limits_and_batch_settings_apply_at_once() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with (
            sim_namespace(cluster) as namespace,
            namespace.writer("s", create=True) as writer,
        ):
            await writer.append(bytes(100))
            await namespace.set_policy(record_bytes_max=10, linger_ms=2000, compression="zstd")
            await trio.sleep(SOON_S)
            with pytest.raises(InvalidArgument, match="largest is 10"):
                await writer.append(bytes(100))
            begun = trio.current_time()
            await writer.append(bytes(10))
            assert trio.current_time() - begun > 1.9
            assert writer.statistics().rolls == 0

    simulate(scenario, 1)


@pytest.mark.parametrize(("before_ms", "after_ms"), [(60_000, 0), (60_000, 1000), (0, 500)])
def test_accumulated_records_do_not_wait_for_an_old_linger_deadline(
    before_ms: int, after_ms: int
) -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with (
            sim_namespace(cluster, linger_ms=before_ms) as namespace,
            namespace.writer("s", create=True) as writer,
        ):
            tickets: list[Ticket] = []

            async def append() -> None:
                for number in range(2000):
                    tickets.append(writer.append_nowait(b"%d" % number))
                    await trio.sleep(0.0001)

            with trio.fail_after(2 * SOON_S):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(append)
                    await trio.sleep(0.05)
                    await namespace.set_policy(linger_ms=after_ms)
                for ticket in tickets:
                    await ticket.wait()
                await writer.append(b"after")

    simulate(scenario, 7)


@pytest.mark.parametrize("is_idle", [True, False])
def test_a_change_of_the_quorums_makes_a_writer_roll(is_idle: bool) -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with sim_namespace(cluster) as namespace:
            async with namespace.writer("s", create=True) as writer:
                tickets = [] if is_idle else [writer.append_nowait(b"%d" % n) for n in range(10)]
                await namespace.set_policy(write_quorum=2, ack_quorum=2, digest_type="CRC32")
                await trio.sleep(SOON_S)
                assert writer.statistics().rolls == 1
                tickets.append(writer.append_nowait(b"last"))
                assert [await t.wait() for t in tickets] == sorted(
                    [await t.wait() for t in tickets]
                )
                stream = await namespace.stream_metadata("s")
                assert len(stream.segments) == (1 if is_idle else 2)
                ledger = await namespace.client.ledger_metadata(stream.segments[-1].ledger_id)
                assert (ledger.write_quorum, ledger.ack_quorum) == (2, 2)
                await trio.sleep(60)
                assert writer.statistics().rolls == 1
            async with namespace.reader("s") as reader:
                batches = [batch async for batch in reader.read_to_end()]
            assert sum(map(len, batches)) == len(tickets)

    simulate(scenario, 2)


def test_a_ledger_prepared_for_the_old_settings_is_not_used() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with (
            sim_namespace(cluster, roll_ms=100_000) as namespace,
            namespace.writer("s", create=True) as writer,
        ):
            await writer.append(b"1")
            await trio.sleep(60)
            prepared = (await namespace.stream_metadata("s")).prepared
            assert prepared is not None
            await namespace.set_policy(ack_quorum=3)
            await trio.sleep(SOON_S)
            stream = await namespace.stream_metadata("s")
            assert prepared not in stream.ledgers()
            assert prepared not in await namespace.client.list_ledgers()
            ledger = await namespace.client.ledger_metadata(stream.segments[-1].ledger_id)
            assert ledger.ack_quorum == 3

    simulate(scenario, 3)


def test_a_failed_roll_to_new_settings_is_retried_while_appends_continue() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with (
            sim_namespace(cluster) as namespace,
            namespace.writer("s", create=True) as writer,
        ):
            await writer.append(b"1")
            await namespace.set_policy(ensemble_size=5)
            for _ in range(20):
                await writer.append(b"2")
                await trio.sleep(1)
            assert writer.statistics().rolls == 0
            for _ in range(2):
                await cluster.start_bookie(cluster.add_bookie())
            await trio.sleep(20)
            assert writer.statistics().rolls == 1

    simulate(scenario, 4)


class CountingStore:
    """A store that counts the open watches on the namespace."""

    def __init__(self, inner: MetadataStore) -> None:
        self._inner = inner
        self.watches = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    async def watch(self, path: str) -> AsyncGenerator[Node | None, None]:
        self.watches += path == namespace_path("n")
        try:
            async for node in self._inner.watch(path):
                yield node
        finally:
            self.watches -= path == namespace_path("n")


def test_many_writers_share_one_watch_that_outlives_the_first_of_them() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client() as client:
            store = CountingStore(client.store)
            client.store = store  # type: ignore[assignment]
            namespace = Namespace(client, "n")
            await namespace.ensure()
            writers: dict[int, StreamWriter] = {}
            ends = [trio.Event() for _ in range(10)]

            async def hold(number: int) -> None:
                async with namespace.writer(f"s{number}", create=True) as writer:
                    writers[number] = writer
                    await ends[number].wait()

            async with trio.open_nursery() as nursery:
                for number in range(10):
                    nursery.start_soon(hold, number)
                await trio.sleep(SOON_S)
                assert store.watches == 1
                for end in ends[:9]:
                    end.set()
                await trio.sleep(SOON_S)
                assert store.watches == 1
                await namespace.set_policy(record_bytes_max=10)
                await trio.sleep(SOON_S)
                with pytest.raises(InvalidArgument):
                    await writers[9].append(bytes(11))
                ends[9].set()
            assert store.watches == 0

    simulate(scenario, 5)


def test_a_writer_that_ends_slowly_does_not_stop_others_from_following() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with sim_namespace(cluster) as namespace:
            scope = trio.CancelScope()

            async def end_slowly() -> None:
                with scope:
                    async with namespace.writer("slow", create=True):
                        try:
                            await trio.sleep_forever()
                        finally:
                            with trio.CancelScope(shield=True):
                                await trio.sleep(100)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(end_slowly)
                await trio.sleep(SOON_S)
                async with namespace.writer("s", create=True) as writer:
                    scope.cancel()
                    await trio.sleep(SOON_S)
                    await namespace.set_policy(record_bytes_max=10)
                    await trio.sleep(SOON_S)
                    with pytest.raises(InvalidArgument):
                        await writer.append(bytes(11))

    simulate(scenario, 10)


def test_a_writer_follows_the_policy_again_after_an_outage_of_the_store() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client("writer") as client, cluster.client() as other:
            await Namespace(other, "n").ensure()
            async with Namespace(client, "n").writer("s", create=True) as writer:
                await trio.sleep(SOON_S)
                cluster.metadata.cut_off("writer")
                await Namespace(other, "n").set_policy(record_bytes_max=10)
                for _ in range(20):
                    await writer.append(bytes(11))
                    await trio.sleep(1)
                cluster.metadata.heal()
                await trio.sleep(2 * SOON_S)
                with pytest.raises(InvalidArgument):
                    await writer.append(bytes(11))

    simulate(scenario, 6)


def test_an_unreadable_policy_does_not_end_a_writer() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client() as client:
            namespace, path = Namespace(client, "n"), namespace_path("n")
            await namespace.ensure(roll_bytes=1 << 16, batch_bytes=1000)
            async with namespace.writer("s", create=True) as writer:
                await writer.append(b"1")
                good = await client.store.get(path)
                await client.store.put(path, b"not ours")
                for _ in range(200):
                    await writer.append(bytes(1000))
                assert writer.statistics().rolls >= 2
                await client.store.put(path, good.data)
                await namespace.set_policy(record_bytes_max=10)
                await trio.sleep(SOON_S)
                with pytest.raises(InvalidArgument):
                    await writer.append(bytes(11))

    simulate(scenario, 8)


def test_segments_roll_under_a_policy_that_cannot_be_followed() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with (
            sim_namespace(cluster, roll_bytes=1 << 16, batch_bytes=1000) as namespace,
            namespace.writer("s", create=True) as writer,
        ):
            await writer.append(b"1")
            await namespace.set_policy(ensemble_size=5)
            await trio.sleep(SOON_S)
            for _ in range(400):
                await writer.append(bytes(1000))
                await trio.sleep(0.1)
            assert writer.statistics().rolls >= 3

    simulate(scenario, 11)


def test_a_writer_is_repaired_under_a_policy_that_cannot_be_followed() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with (
            sim_namespace(cluster) as namespace,
            namespace.writer("s", create=True) as writer,
        ):
            await writer.append(b"1")
            await namespace.set_policy(ensemble_size=5)
            await trio.sleep(SOON_S)
            for bookie in cluster.bookies:
                await cluster.kill_bookie(bookie)
            ticket = writer.append_nowait(b"2")
            await trio.sleep(20)
            await cluster.start_all()
            await ticket.wait()
            assert writer.statistics().repairs == 1
            for _ in range(2):
                await cluster.start_bookie(cluster.add_bookie())
            await trio.sleep(20)
            assert writer.statistics().rolls == 1

    simulate(scenario, 9)
