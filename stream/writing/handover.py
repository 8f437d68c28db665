"""Asking the writer of a stream to hand it over, and what such a request looks like.

A request is an ephemeral node whose name says the stream and the epoch it is about: it ends with
who asked, and means nothing to the next writer. It takes nothing from anybody: whoever asked still
has to take the stream over, which is safe with or without an answer.
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
    """The folder of all requests in a namespace: one watch hears of them all."""
    return f"{namespace_path(namespace)}/successors"


def request_name(stream: str, epoch: int) -> str:
    return f"{stream}~{epoch}"


def parse_request(name: str) -> tuple[str, int] | None:
    """Stream and epoch of a request; None for what is none."""
    stream, _, epoch = name.rpartition("~")
    return (stream, int(epoch)) if stream and epoch.isascii() and epoch.isdigit() else None


@asynccontextmanager
async def handover(ledgers: StreamLedgers, seconds: float) -> AsyncIterator[None]:
    """Asks whoever writes the stream to seal it; the block is entered when nobody does (any more),
    or after `seconds`. Take the stream over inside: who asks too waits for the end of the block.

    Raises NoSuchStream, MetadataUnavailable.
    """
    client, made = ledgers.client, list[str]()
    lock = f"{requests_path(ledgers.namespace)}/{ledgers.stream}~"
    name = b"%032x" % client.rng.getrandbits(128)
    try:
        with trio.move_on_after(seconds):
            # Raises NoSuchStream; a watch would wait for the stream to come into being.
            await ledgers.store.read_stream(ledgers.namespace, ledgers.stream)
            await _wait_turn(client.store, lock, name)
            await _wait_sealed(ledgers, made)
        yield
    finally:
        with trio.move_on_after(_WITHDRAW_S) as scope:
            scope.shield = True
            for path in reversed(made):
                await _withdraw(client.store, path)
        # Those who wait for their turn must not wait for our session to end.
        if not await _give_way(client.store, lock, name):
            _give_way_later(client, lock, name)


async def _wait_turn(store: MetadataStore, lock: str, name: bytes) -> None:
    """One asks at a time: two would take the stream from each other half way."""
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


async def _give_way(store: MetadataStore, lock: str, name: bytes) -> bool:
    """The next one's turn; also if it is not known whether it ever was ours. False if the store
    did not answer."""
    with trio.move_on_after(_WITHDRAW_S) as scope:
        scope.shield = True
        try:
            node = await store.get(lock)
            if node.data == name:
                await store.delete(lock, node.version)
        except NoSuchNode:
            pass
        except LedgerError as error:
            _log.info("lock %s stays for now: %s", lock, error)
            return False
        return True
    return False


def _give_way_later(client: LedgerClient, lock: str, name: bytes) -> None:
    async def give_way() -> None:
        is_over = False
        while not is_over:
            await trio.sleep(_WITHDRAW_S)
            is_over = await _give_way(client.store, lock, name)

    try:
        client.start_background(give_way)
    except LedgerClosed:
        pass  # it goes with the session


async def _wait_sealed(ledgers: StreamLedgers, made: list[str]) -> None:
    store = ledgers.client.store
    versions = ledgers.store.watch_stream(ledgers.namespace, ledgers.stream)
    async with aclosing(versions):
        async for stream in versions:
            # A writer that a commit has interrupted still has records to append.
            if stream is None or (stream.open_segment is None and stream.interrupted is None):
                return
            name = request_name(ledgers.stream, stream.epoch)
            path = f"{requests_path(ledgers.namespace)}/{name}"
            if path not in made:
                made.append(path)
                await _ask(store, path)


async def _ask(store: MetadataStore, path: str) -> None:
    try:
        await store.create(path, b"", is_ephemeral=True)
    except NodeExists:
        pass  # left by one that asked and died: it asks for us


async def _withdraw(store: MetadataStore, path: str) -> None:
    try:
        await store.delete(path)
    except NoSuchNode:
        pass
    except LedgerError as error:
        # It is about an epoch that is over, and goes with our session.
        _log.info("request %s stays for now: %s", path, error)
