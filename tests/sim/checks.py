"""What must hold when the faults are over: everything converges, and nothing was lost.

The checks of every single step are in `model`; here are those that need a calm world.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from contextlib import aclosing

import trio

from bookie.testing.cluster import BOOKIE_PORT, SimCluster
from bookie.testing.scheduler import waiting_at
from ledger.client import LedgerClient
from ledger.core.entry import master_key
from ledger.core.metadata import LedgerMetadata
from ledger.core.quorum import write_set
from ledger.errors import LedgerError, Status
from ledger.wire.messages import (
    AddRequest,
    AddResponse,
    ReadRequest,
    ReadResponse,
    RequestBody,
    ResponseBody,
)
from tests.sim.model import LedgerHistory, Model, Violation, payload_of
from tests.sim.workload import PASSWORD, Workload, closing

CONVERGENCE_S = 240.0
"""Virtual time after the last fault within which everything must be well."""
_COPIES_CHECKED = 8
_RETRY_S = 0.3


async def check_convergence(cluster: SimCluster, workload: Workload, model: Model) -> None:
    """[I12] All bookies serve, all actors finish, every ledger can be closed and read, a new
    one can be written and tailed; [I1] every entry has its copies."""
    step = "bookies start"
    stack: list[str] = []
    task = trio.lowlevel.current_task()
    deadline_s = cluster.simulation.now_s + CONVERGENCE_S
    cluster.simulation.call_at(deadline_s, lambda: stack.extend(waiting_at(task)))
    with trio.move_on_after(CONVERGENCE_S) as scope:
        await start_bookies(cluster)
        step = "actors finish"
        await workload.stop()
        # One more round: actors may have met the last of the dying bookies.
        await start_bookies(cluster)
        async with cluster.client("checker") as client, cluster.client("rival") as rival:
            step = "bookies take entries"
            await _wait_writable(cluster, client)
            step = "every ledger is closed and read"
            for history in model.ledgers.values():
                if not history.is_being_deleted:
                    await settle(history, workload, client, rival)
            if workload.streams is not None:
                step = "the stream is sealed, read and written again"
                await workload.streams.check(client)
            step = "a new ledger is written and tailed"
            await _write_and_tail(cluster, model, client, rival)
            step = "every entry has its copies, and every fence holds"
            for history in model.ledgers.values():
                if not history.is_being_deleted:
                    await _check_copies(cluster, model, history, client, workload.chance)
                    await _check_fence(cluster, model, history, client, workload)
    if scope.cancelled_caught:
        raise Violation(
            f"[I12] not converged within {CONVERGENCE_S:g} virtual seconds: {step}, waiting at "
            + " > ".join(stack)
        )


async def _wait_writable(cluster: SimCluster, client: LedgerClient) -> None:
    """A bookie whose disk was full believes only after some looks that there is room again."""
    wanted = {f"{name}:{BOOKIE_PORT}" for name in cluster.bookies}
    async with aclosing(client.bookies.watch_available()) as changes:
        async for available in changes:
            if wanted <= available.keys():
                return


async def start_bookies(cluster: SimCluster) -> None:
    """A bookie may still die of what it began during the last fault; then it starts again."""
    while True:
        await cluster.start_all()
        if all(cluster.is_up(name) for name in cluster.bookies):
            return
        await trio.sleep(_RETRY_S)


async def settle(
    history: LedgerHistory, workload: Workload, client: LedgerClient, rival: LedgerClient
) -> None:
    """Two recover the ledger at once and must agree; the model compares all they see."""
    done: list[bool] = []

    async def recover(recoverer: LedgerClient) -> None:
        while not await workload.recover(recoverer, history):  # noqa: ASYNC110
            await trio.sleep(_RETRY_S)
        done.append(True)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(recover, client)
        nursery.start_soon(recover, rival)
    assert len(done) == 2


async def _write_and_tail(
    cluster: SimCluster, model: Model, client: LedgerClient, rival: LedgerClient
) -> None:
    size, entries = 100, 20
    bookies = len(cluster.bookies)
    ack_quorum = bookies // 2 + 1
    while True:
        try:
            writer = await client.create_ledger(
                ensemble_size=bookies,
                write_quorum=bookies,
                ack_quorum=ack_quorum,
                password=PASSWORD,
            )
            break
        except LedgerError:
            await trio.sleep(_RETRY_S)
    history = model.created(writer.ledger_id, (bookies, bookies, ack_quorum))
    writer.on_confirmed = lambda last: model.confirmed(history, last)
    reader = await rival.open_ledger(writer.ledger_id, password=PASSWORD, recover=False)

    async def write() -> None:
        for number in range(entries):
            data = payload_of(writer.ledger_id, number, size)
            model.pushed(history, writer.append_nowait(data), size)
            await writer.flush()
        metadata = await writer.close()
        model.closed(history, metadata.last_entry_id, metadata.length)

    async with reader, trio.open_nursery() as nursery:
        nursery.start_soon(write)
        expected = 0
        async with closing(reader.tail(0)) as batches:
            async for batch in batches:
                model.read(history, expected, batch)
                expected += len(batch)
                model.served_lac(history, expected - 1, -1)
    if expected != entries:
        model.violated(f"[I3] a tail of {entries} entries ended after {expected}")


async def _check_copies(
    cluster: SimCluster,
    model: Model,
    history: LedgerHistory,
    client: LedgerClient,
    chance: random.Random,
) -> None:
    """Asks the bookies themselves: each entry lies on its ack quorum at least. A bookie whose
    disk was lost may have been one of those, and one that has a damaged copy. One that lost a
    directory must have copied back what was in it."""
    lost = _lost(cluster)
    forgetful = [f"{name}:{BOOKIE_PORT}" for name in model.forgetful]
    metadata = await client.ledger_metadata(history.ledger_id)
    last = metadata.last_entry_id
    if last < 0:
        return
    for entry_id in (0, last, *(chance.randint(0, last) for _ in range(_COPIES_CHECKED))):
        copies = await _copies(client, metadata, entry_id, lost, forgetful)
        if copies < metadata.ack_quorum:
            model.violated(
                f"[I1] ledger {history.ledger_id} {history.quorums}: entry {entry_id} lies on "
                f"{copies} bookies only"
            )
        model.count("copies checked")


def _lost(cluster: SimCluster) -> list[str]:
    return [f"{name}:{BOOKIE_PORT}" for name in cluster.lost_bookies]


async def _copies(
    client: LedgerClient,
    metadata: LedgerMetadata,
    entry_id: int,
    lost: Collection[str],
    forgetful: Collection[str],
) -> int:
    bookies = metadata.fragment_of(entry_id).bookies
    copies = 0
    for index in write_set(entry_id, metadata.ensemble_size, metadata.write_quorum):
        if bookies[index] in lost:
            copies += 1
            continue
        request = ReadRequest(metadata.ledger_id, entry_id)
        answer = await _ask(client, bookies[index], request)
        while bookies[index] in forgetful and _is_unknown(answer):
            await trio.sleep(_RETRY_S)
            answer = await _ask(client, bookies[index], request)
        assert isinstance(answer, ReadResponse)
        copies += answer.status is Status.OK or _is_damaged(answer)
    return copies


async def _check_fence(
    cluster: SimCluster,
    model: Model,
    history: LedgerHistory,
    client: LedgerClient,
    workload: Workload,
) -> None:
    """[I5] Were the old writer still there, it could get no entry to an ack quorum."""
    writer = workload.writers.get(history.ledger_id)
    if writer is None or history.is_closed_by_writer or history.end is None:
        return
    if writer.core.is_suspended:
        return  # it may not know the ensemble that was fenced; but it can confirm nothing
    lost = _lost(cluster)
    ensemble = writer.metadata.last_fragment.bookies
    digest, (size, write_quorum, ack_quorum) = writer.digest, history.quorums
    first = history.end[0] + 1
    for entry_id in range(first, first + (1 if size == write_quorum else size)):
        head, payload = digest.encode_entry(history.ledger_id, entry_id, -1, entry_id, b"late")
        request = AddRequest(
            history.ledger_id, entry_id, master_key(PASSWORD), bytes(head) + bytes(payload)
        )
        takers = 0
        for index in write_set(entry_id, size, write_quorum):
            if ensemble[index] in lost:
                continue
            answer = await _ask(client, ensemble[index], request)
            assert isinstance(answer, AddResponse)
            takers += answer.status is Status.OK
        if takers >= ack_quorum:
            model.violated(
                f"[I5] ledger {history.ledger_id} {history.quorums}: recovered and closed at "
                f"{history.end[0]}, yet {takers} bookies take entry {entry_id} from its writer"
            )
    model.count("fences checked")


def _is_damaged(answer: ResponseBody) -> bool:
    """A bookie has an entry, but its disk rotted."""
    is_error = answer.status is Status.IO_ERROR
    return is_error and isinstance(answer, ReadResponse) and answer.body is not None


def _is_unknown(answer: ResponseBody) -> bool:
    """The bookie may have forgotten the entry."""
    return answer.status is Status.IO_ERROR and not _is_damaged(answer)


async def _ask(client: LedgerClient, bookie: str, request: RequestBody) -> ResponseBody:
    """The answer of a bookie, however often it takes."""
    while True:
        try:
            return await client.pool.call(bookie, request, timeout_s=5)
        except LedgerError:
            await trio.sleep(_RETRY_S)
