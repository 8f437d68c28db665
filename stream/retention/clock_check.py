"""Checks the janitor's clock against others, before anything is deleted for its age.

The metadata store stamps nodes with its own clock; with SQLite that is the clock of this machine,
too. Janitors leave the time of their last sweep, once a day. A machine whose clock is a year ahead
finds that mark a year old; so does a janitor that has not run for long, and it looks for younger
times in the namespace.
"""

from __future__ import annotations

from ledger.client import LedgerClient
from ledger.core.steady_clock import CLOCK_OFF_MS
from ledger.errors import MetadataConflict, NodeExists, NoSuchNode
from ledger.metastore.ledgers import client_path
from stream.core.clocks import (
    doubt_of_mark,
    doubt_of_silence,
    doubt_of_store,
    is_witnessed,
    known_times,
)
from stream.core.metadata.namespaces import NamespaceMetadata
from stream.errors import ClockInDoubt, IsPartitioned, NoSuchStream
from stream.store.streams import StreamStore

MARK_PATH = "/ledgerstream/janitor"
"""A node with the time of the last sweep, in milliseconds as text."""


async def check_clock(
    client: LedgerClient, policy: NamespaceMetadata, *, is_trusted: bool = False
) -> None:
    """Checks the clock before a sweep of a namespace. With `is_trusted` it only leaves the mark.

    Raises ClockInDoubt, MetadataUnavailable.
    """
    now_ms = client.now_ms()
    mark_ms = await _read_mark(client)
    if not is_trusted:
        await _check_against(client, now_ms, mark_ms)
        if not is_witnessed(now_ms, mark_ms):
            newest_ms = await _newest_ms(client, policy, now_ms, mark_ms)
            if not is_witnessed(now_ms, newest_ms):
                raise ClockInDoubt(doubt_of_silence(policy, now_ms, newest_ms))
    if is_trusted or now_ms - mark_ms > CLOCK_OFF_MS:
        await _leave_mark(client, now_ms)


async def trusted_now_ms(client: LedgerClient) -> int:
    """Returns the time for a deletion by age that an operator wants, in no namespace.

    Raises ClockInDoubt, also if no janitor has swept for long; MetadataUnavailable.
    """
    now_ms = client.now_ms()
    mark_ms = await _read_mark(client)
    await _check_against(client, now_ms, mark_ms)
    if mark_ms >= 0 and not is_witnessed(now_ms, mark_ms):
        raise ClockInDoubt(doubt_of_silence(None, now_ms, mark_ms))
    return now_ms


async def _check_against(client: LedgerClient, now_ms: int, mark_ms: int) -> None:
    doubt = doubt_of_store(now_ms, await _store_clock_ms(client)) or doubt_of_mark(now_ms, mark_ms)
    if doubt is not None:
        raise ClockInDoubt(doubt)


async def _store_clock_ms(client: LedgerClient) -> int:
    path = client_path(f"clock-{client.rng.getrandbits(64):016x}")
    await client.store.create(path, b"", is_ephemeral=True)
    try:
        return (await client.store.get(path)).created_ms
    finally:
        try:
            await client.store.delete(path)
        except NoSuchNode:
            pass  # its session has ended


async def _newest_ms(
    client: LedgerClient, policy: NamespaceMetadata, now_ms: int, mark_ms: int
) -> int:
    """Returns a time that shows that the clock is not far ahead, or the newest that is known."""
    store = StreamStore(client.store)
    newest_ms = max(mark_ms, policy.created_ms)
    for name in await store.list_nodes(policy.name):
        if is_witnessed(now_ms, newest_ms):
            break
        try:
            stream, _ = await store.read_stream(policy.name, name)
        except (NoSuchStream, IsPartitioned):
            continue
        # A stream that a wrong clock stamped is no witness.
        known = [time_ms for time_ms in known_times(stream) if time_ms <= now_ms + CLOCK_OFF_MS]
        newest_ms = max(newest_ms, *known, -1)
    return newest_ms


async def _read_mark(client: LedgerClient) -> int:
    try:
        return int((await client.store.get(MARK_PATH)).data)
    except (NoSuchNode, ValueError):
        return -1


async def _leave_mark(client: LedgerClient, now_ms: int) -> None:
    data = b"%d" % now_ms
    try:
        await client.store.create(MARK_PATH, data)
    except NodeExists:
        try:
            await client.store.put(MARK_PATH, data)
        except (NoSuchNode, MetadataConflict):
            pass  # the next sweep leaves one
