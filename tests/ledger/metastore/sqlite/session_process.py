"""A process with a session of its own, for tests that need real ones.

`python -m tests.ledger.metastore.sqlite.session_process FILE TIMEOUT_MS COMMAND ARGUMENTS...`
prints one line for each of its actions.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from contextlib import aclosing

import trio

from ledger.errors import MetadataConflict, NodeExists
from ledger.metastore.base import MetadataStore
from ledger.metastore.sqlite.store import open_sqlite


def say(text: object) -> None:
    print(text, flush=True)


async def hold(store: MetadataStore, path: str) -> None:
    """Holds an ephemeral node, and creates it again after its session was lost."""
    while True:
        await store.create(path, b"held", is_ephemeral=True)
        say("held")
        async with aclosing(store.watch(path)) as nodes:
            async for node in nodes:
                if node is None:
                    break
        say("lost")


async def count(store: MetadataStore, path: str, times: str) -> None:
    """Adds one to a counter `times` times, by compare-and-put."""
    try:
        await store.create(path, b"0")
    except NodeExists:
        pass
    left = int(times)
    while left:
        node = await store.get(path)
        try:
            await store.put(path, b"%d" % (int(node.data) + 1), node.version)
        except MetadataConflict:
            continue
        left -= 1
    say("counted")


async def put_forever(store: MetadataStore, path: str) -> None:
    """Puts increasing numbers, and prints each one when it is acknowledged."""
    await store.create(path, b"0")
    number = 0
    while True:
        number += 1
        await store.put(path, b"%d" % number)
        say(number)


async def watch(store: MetadataStore, path: str) -> None:
    """Prints each value of a node until it is "done"."""
    async with aclosing(store.watch(path)) as nodes:
        async for node in nodes:
            text = "none" if node is None else node.data.decode()
            say(text)
            if text == "done":
                return


async def ids(store: MetadataStore, path: str, times: str) -> None:
    for _ in range(int(times)):
        say(await store.next_id(path))


COMMANDS: dict[str, Callable[..., Awaitable[None]]] = {
    "hold": hold,
    "count": count,
    "put_forever": put_forever,
    "watch": watch,
    "ids": ids,
}


async def main(*words: str) -> None:
    file, timeout_ms, command, *arguments = words
    async with open_sqlite(file, session_timeout_ms=int(timeout_ms)) as store:
        await COMMANDS[command](store, *arguments)


if __name__ == "__main__":
    trio.run(main, *sys.argv[1:])
