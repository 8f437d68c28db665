"""Payloads that are sent without a copy: order, copies, refusals, and bookies that join later."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from ledger.client import LedgerClient
from ledger.core.entry import DigestType
from ledger.errors import InvalidArgument, LedgerClosed, Status
from ledger.wire.messages import AddRequest, AddResponse, Request, ResponseBody
from ledger.writing.frames import ENTRY_PAYLOAD_BYTES_MAX, FRAME_ROOM_BYTES
from tests.ledger.scripted_bookie import scripted_cluster
from tests.real_cluster import SMALL, real_cluster

LARGE = 50_000


def payload_of(entry_id: int) -> bytes:
    return b"%d:" % entry_id + bytes(LARGE if entry_id % 3 else entry_id)


def framed(payload: bytes) -> bytearray:
    return bytearray(b"\xff" * FRAME_ROOM_BYTES + payload)


async def payloads_of(client: LedgerClient, ledger_id: int) -> list[bytes]:
    async with client.open_ledger(ledger_id) as reader:
        return [entry.payload for entry in await reader.read(0, reader.last_add_confirmed)]


@pytest.mark.parametrize("sizes", [(3, 3, 2), (4, 2, 2), (4, 3, 2)])
@pytest.mark.parametrize("digest_type", DigestType)
async def test_payloads_sent_in_place_keep_their_order_among_copied_ones(
    tmp_path: Path, sizes: tuple[int, int, int], digest_type: DigestType
) -> None:
    ensemble, write, ack = sizes
    async with real_cluster(tmp_path, 4, **SMALL) as cluster, cluster.client() as client:
        async with client.create_ledger(
            ensemble_size=ensemble, write_quorum=write, ack_quorum=ack, digest_type=digest_type
        ) as writer:
            for entry_id in range(100):
                payload = payload_of(entry_id)
                if entry_id % 3:
                    assert writer.append_frame_nowait(framed(payload)) == entry_id
                else:
                    assert writer.append_nowait(payload) == entry_id
            await writer.flush()
            assert writer.bytes_pending == 0
        assert await payloads_of(client, writer.ledger_id) == list(map(payload_of, range(100)))


@pytest.mark.parametrize("deferred_sync", [True, False])
async def test_payloads_are_copied_with_deferred_sync_or_v3(
    tmp_path: Path, deferred_sync: bool
) -> None:
    async with (
        real_cluster(tmp_path, **SMALL) as cluster,
        cluster.client(wire_version=2 if deferred_sync else 3) as client,
    ):
        async with client.create_ledger(deferred_sync=deferred_sync) as writer:
            for entry_id in range(10):
                writer.append_frame_nowait(framed(payload_of(entry_id)))
        assert await payloads_of(client, writer.ledger_id) == list(map(payload_of, range(10)))


async def test_payloads_are_refused_by_a_full_window_a_closed_writer_and_their_size(
    tmp_path: Path,
) -> None:
    async with (
        real_cluster(tmp_path, **SMALL) as cluster,
        cluster.client(window_bytes=2 * LARGE) as client,
    ):
        async with client.create_ledger() as writer:
            with pytest.raises(InvalidArgument, match=str(ENTRY_PAYLOAD_BYTES_MAX)):
                writer.append_frame_nowait(framed(bytes(ENTRY_PAYLOAD_BYTES_MAX + 1)))
            assert writer.last_add_pushed == -1
            writer.append_frame_nowait(framed(bytes(LARGE)))
            writer.append_frame_nowait(framed(bytes(LARGE)))
            with pytest.raises(trio.WouldBlock):
                writer.append_frame_nowait(framed(bytes(LARGE)))
            await writer.wait_room()
            writer.append_frame_nowait(framed(b"last"))
        with pytest.raises(LedgerClosed):
            writer.append_frame_nowait(framed(b"too late"))
        payloads = await payloads_of(client, writer.ledger_id)
        assert payloads == [bytes(LARGE), bytes(LARGE), b"last"]


async def test_a_new_bookie_receives_the_unconfirmed_payloads(tmp_path: Path) -> None:
    async with real_cluster(tmp_path, 4, **SMALL) as cluster, cluster.client() as client:
        async with client.create_ledger(ack_quorum=3) as writer:
            bookies = writer.metadata.last_fragment.bookies
            lost = next(n for n, b in cluster.bookies.items() if b.bookie_id == bookies[0])
            await writer.append(payload_of(0))
            await cluster.stop(lost)
            for entry_id in range(1, 20):
                writer.append_frame_nowait(framed(payload_of(entry_id)))
            with trio.fail_after(20):
                await writer.flush()
            # All three must have acknowledged, so the new one received the missing entries.
            assert writer.statistics().ensemble_changes >= 1
            assert bookies[0] not in writer.metadata.last_fragment.bookies
        assert await payloads_of(client, writer.ledger_id) == list(map(payload_of, range(20)))


@pytest.mark.parametrize("wire_version", [2, 3])
async def test_a_receipt_has_the_digest_of_a_payload_sent_in_place(wire_version: int) -> None:
    async with (
        scripted_cluster(3) as cluster,
        cluster.client(wire_version=wire_version) as client,
        client.create_ledger() as writer,
    ):
        for entry_id in range(4):
            writer.append_frame_nowait(framed(payload_of(entry_id)))
        acks = writer.watch_acks(2)
        await writer.flush()
        receipt = await acks.settle(5.0)
        held = cluster.bookie(receipt.acks[0].bookie).entries[writer.ledger_id, 2]
        assert receipt.digest == bytes(held[32:36])


async def test_one_of_several_payloads_is_sent_again_to_a_busy_bookie() -> None:
    refused: list[int] = []

    def busy(request: Request) -> ResponseBody | None:
        body = request.body
        if isinstance(body, AddRequest) and body.entry_id == 1 and not refused:
            refused.append(body.entry_id)
            return AddResponse(
                Status.TOO_MANY_REQUESTS, body.ledger_id, body.entry_id, body.entry_id
            )
        return None

    async with scripted_cluster(3) as cluster, cluster.client() as client:
        async with client.create_ledger(ack_quorum=3) as writer:
            first = writer.metadata.last_fragment.bookies[0]
            cluster.bookie(first).script = busy
            for entry_id in range(3):
                writer.append_frame_nowait(framed(payload_of(entry_id)))
            with trio.fail_after(20):
                await writer.flush()
        assert refused == [1]
        held = cluster.bookie(first).entries
        assert [held[writer.ledger_id, n][36:] for n in range(3)] == list(map(payload_of, range(3)))
