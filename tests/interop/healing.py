"""Ledgers that auto-recovery heals: how they are written, waited for and checked."""

from __future__ import annotations

import shutil
from collections.abc import Collection
from dataclasses import dataclass

import trio

from ledger.autorecovery.published import read_workers
from ledger.client import LedgerClient
from ledger.core.entry import Digest, DigestType
from ledger.errors import NoSuchLedger
from tests.interop.java_client import JavaClient, payload
from tests.interop.our_bookies import OurBookies
from tests.interop.replicas import read_replicas, replica_faults
from tests.interop.timeouts import PATIENCE_S
from tests.interop.znodes import root_of, znodes, zookeeper_client

SIZE = 700
"""Bytes of an entry, payload(ledger id, entry id, SIZE)."""


@dataclass(frozen=True, slots=True)
class JavaLedger:
    """A ledger of the Java client."""

    ledger_id: int
    handle: int
    digest: str
    password: bytes


async def created_by_java(
    theirs: JavaClient, *, write_quorum: int = 3, digest: str = "CRC32C", password: bytes = b""
) -> JavaLedger:
    made = await theirs.call(
        "create",
        ensemble=3,
        write_quorum=write_quorum,
        ack_quorum=2,
        digest=digest,
        password=password,
    )
    return JavaLedger(made["ledger"], made["handle"], digest, password)


async def append(theirs: JavaClient, ledger: JavaLedger, count: int, *, pause_us: int = 0) -> None:
    await theirs.call(
        "append_many",
        handle=ledger.handle,
        seed=ledger.ledger_id,
        count=count,
        size=SIZE,
        pause_us=pause_us,
    )


async def closed_by_java(
    theirs: JavaClient,
    count: int,
    *,
    write_quorum: int = 3,
    digest: str = "CRC32C",
    password: bytes = b"",
) -> JavaLedger:
    ledger = await created_by_java(
        theirs, write_quorum=write_quorum, digest=digest, password=password
    )
    await append(theirs, ledger, count)
    await theirs.call("close", handle=ledger.handle)
    return ledger


async def closed_by_us(
    ours: LedgerClient, count: int, *, write_quorum: int = 3, size: int = SIZE
) -> int:
    async with ours.create_ledger(
        ensemble_size=3, write_quorum=write_quorum, ack_quorum=2
    ) as writer:
        await writer.append_many([payload(writer.ledger_id, i, size) for i in range(count)])
    return writer.ledger_id


async def named_bookies(ours: LedgerClient, ledger_id: int) -> set[str]:
    """Returns the bookies of all fragments; none if the ledger does not exist."""
    try:
        metadata = await ours.ledger_metadata(ledger_id)
    except NoSuchLedger:
        return set()
    return {bookie for fragment in metadata.fragments for bookie in fragment.bookies}


async def wait_healed(ours: LedgerClient, *dead: str) -> None:
    """Waits until no metadata name one of the `dead` bookies, and no ledger is marked."""

    async def is_healed() -> bool:
        for ledger_id in await ours.list_ledgers():
            if not (await named_bookies(ours, ledger_id)).isdisjoint(dead):
                return False
        return not await ours.underreplication.list()

    with trio.move_on_after(PATIENCE_S):
        while not await is_healed():  # noqa: ASYNC110
            await trio.sleep(0.1)
        return
    marks = ours.underreplication
    workers = await read_workers(ours.store)
    raise AssertionError(
        f"not healed: marked {await marks.list()}, locked {await marks.locked()}, {workers}"
    )


def start_from_scratch(bookies: OurBookies, count: int) -> None:
    """Starts those of the first `count` bookies that do not run, those that were decommissioned
    with empty directories; deletes all marks, votes and settings of auto-recovery."""
    known = znodes(bookies.uri)
    for number in range(count):
        if number not in bookies.running and f"cookies/{bookies.bookie_id(number)}" not in known:
            shutil.rmtree(bookies.directory / f"ours-{number}")
    bookies.start_missing(count)
    with zookeeper_client(bookies.uri) as zookeeper:
        path = f"{root_of(bookies.uri)}/underreplication"
        if zookeeper.exists(path):
            zookeeper.delete(path, recursive=True)


async def wait_unmarked(ours: LedgerClient, ledger_id: int) -> None:
    """Waits until a ledger has no mark."""
    with trio.fail_after(PATIENCE_S):
        while await ours.underreplication.read(ledger_id) is not None:  # noqa: ASYNC110
            await trio.sleep(0.1)


async def check_healed(
    ours: LedgerClient,
    ledger_id: int,
    entries: int,
    *,
    dead: Collection[str] = (),
    recovered_from: int | None = None,
    size: int = SIZE,
    are_lacs_changed: bool = False,
) -> None:
    """Checks that a closed ledger has `entries` entries of `payload`, each on its whole write set,
    with the same bytes everywhere, and nothing on the `dead` bookies. `are_lacs_changed`: Apache's
    workers may have copied it; they put the last entry into the LAC field of each copy."""
    metadata = await ours.ledger_metadata(ledger_id)
    assert metadata.is_closed
    assert metadata.last_entry_id == entries - 1
    assert (await named_bookies(ours, ledger_id)).isdisjoint(dead)
    replicas = await read_replicas(ours.pool, metadata)
    if not are_lacs_changed:
        faults = replica_faults(metadata, replicas, recovered_from=recovered_from, is_on_all=True)
        assert faults == []
    digest = Digest(metadata.digest_type or DigestType.CRC32C, metadata.password)
    for each in replicas:
        assert len(each.by_bookie) == metadata.write_quorum
        for bookie, body in each.by_bookie.items():
            assert body is not None, f"entry {each.entry_id} of {ledger_id} is not on {bookie}"
            entry = digest.decode_entry(ledger_id, each.entry_id, body)
            assert entry.payload == payload(ledger_id, each.entry_id, size)
            assert entry.length == (each.entry_id + 1) * size


async def check_read_by_java(theirs: JavaClient, ledger: JavaLedger, entries: int) -> None:
    """Checks that Apache's client reads all entries of a closed ledger."""
    opened = await theirs.call(
        "open",
        ledger=ledger.ledger_id,
        recovery=False,
        digest=ledger.digest,
        password=ledger.password,
    )
    assert opened["closed"]
    assert opened["lac"] == entries - 1
    checked = await theirs.call(
        "verify", handle=opened["handle"], last=entries - 1, size=SIZE, seed=ledger.ledger_id
    )
    assert checked == {"entries": entries, "bytes": entries * SIZE}
