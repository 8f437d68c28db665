"""Handover: asks the writer of a stream to seal it, so that the next one can take it over.

A request is an ephemeral node named after the stream and the epoch of its writer: it ends with the
session of the client that made it, and the next writer ignores it. A request changes nothing by
itself: the client still has to take the stream over, which is safe with or without an answer.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import trio

from ledger.client import LedgerClient
from ledger.errors import LedgerClosed, LedgerError, NodeExists, NoSuchNode
from ledger.metastore.base import MetadataStore
from stream.store.streams import namespace_path
from stream.takeover import StreamLedgers

_log = logging.getLogger(__name__)

_WITHDRAW_S = 1.0


def requests_path(namespace: str) -> str:
    """Returns the node above all requests of a namespace: one watch reports all of them."""
    return f"{namespace_path(namespace)}/successors"


def request_name(stream: str, epoch: int) -> str:
    """Returns the name of a request to the writer of this epoch."""
    return f"{stream}~{epoch}"


def parse_request(name: str) -> tuple[str, int] | None:
    """Returns stream and epoch of a request; None if the name is not one of a request."""
    stream, _, epoch = name.rpartition("~")
    return (stream, int(epoch)) if stream and epoch.isascii() and epoch.isdigit() else None


@asynccontextmanager
async def handover(ledgers: StreamLedgers, seconds: float) -> AsyncIterator[None]:
    """Asks the stream's writer to seal it; enters the block when no writer is left, or after
    `seconds`. Take the stream over inside: other clients that ask wait for the end of the block.

    Raises NoSuchStream, MetadataUnavailable.
    """
    client, made = ledgers.client, list[str]()
    lock = f"{requests_path(ledgers.namespace)}/{ledgers.stream}~"
    name = b"%032x" % client.rng.getrandbits(128)
    try:
        with trio.move_on_after(seconds):
            # Raises NoSuchStream; a watch would wait for the stream to be created.
            await ledgers.store.read_stream(ledgers.namespace, ledgers.stream)
            await _acquire_lock(client.store, lock, name)
            await _wait_sealed(ledgers, made)
        yield
    finally:
        with trio.move_on_after(_WITHDRAW_S) as scope:
            scope.shield = True
            for path in reversed(made):
                await _withdraw(client.store, path)
        # The next client must not have to wait for our session to end.
        if not await _release_lock(client.store, lock, name):
            _release_lock_later(client, lock, name)


async def _acquire_lock(store: MetadataStore, lock: str, name: bytes) -> None:
    """Waits until no other client asks: two would take the stream from each other half way."""
    while True:
        try:
            await store.create(lock, name, is_ephemeral=True)
        except NodeExists:
            pass
        else:
            return
        async with aclosing(store.watch(lock)) as nodes:
            async for node in nodes:
                if node is None:
                    break


async def _release_lock(store: MetadataStore, lock: str, name: bytes) -> bool:
    """Releases the lock, if it is ours; whether it ever was may be unknown. Returns False if the
    store did not answer."""
    with trio.move_on_after(_WITHDRAW_S) as scope:
        scope.shield = True
        try:
            node = await store.get(lock)
            if node.data == name:
                await store.delete(lock, node.version)
        except NoSuchNode:
            pass
        except LedgerError as error:
            _log.info("lock is released later lock=%s cause=%s", lock, error)
            return False
        return True
    return False


def _release_lock_later(client: LedgerClient, lock: str, name: bytes) -> None:
    async def release_lock() -> None:
        is_over = False
        while not is_over:
            await trio.sleep(_WITHDRAW_S)
            is_over = await _release_lock(client.store, lock, name)

    try:
        client.start_background(release_lock)
    except LedgerClosed:
        pass  # it ends with the session


async def _wait_sealed(ledgers: StreamLedgers, made: list[str]) -> None:
    store = ledgers.client.store
    versions = ledgers.store.watch_stream(ledgers.namespace, ledgers.stream)
    async with aclosing(versions):
        async for stream in versions:
            # A writer that a sink's commit has interrupted still has records to append.
            if stream is None or (stream.open_segment is None and stream.interrupted is None):
                return
            name = request_name(ledgers.stream, stream.epoch)
            path = f"{requests_path(ledgers.namespace)}/{name}"
            if path not in made:
                made.append(path)
                await _request(store, path)


async def _request(store: MetadataStore, path: str) -> None:
    try:
        await store.create(path, b"", is_ephemeral=True)
    except NodeExists:
        pass  # left by a client that asked and died: it serves for ours, too


async def _withdraw(store: MetadataStore, path: str) -> None:
    try:
        await store.delete(path)
    except NoSuchNode:
        pass
    except LedgerError as error:
        # It names an epoch that is over, and ends with our session.
        _log.info("request is left to the end of the session request=%s cause=%s", path, error)
