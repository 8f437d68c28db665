"""A backup of the metadata as lines of JSON, which any driver can write and read.

The first line is a header, each further line a node, and the last line has their number, so
that a file that was cut short is noticed. Nodes of sessions are left out: they belong to processes.
The namespaces are read before the ledgers, so that a backup of a cluster in use has the ledger of
each segment that it has, and in them the streams before the pages of their segments. What was
created meanwhile may be missing; bookies keep it (`ledger.metastore.restores`). So may pages whose
segments were purged meanwhile, though a stream names them. Lengths of lines are bounded by those of
nodes.
"""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass

from ledger.errors import InvalidArgument, NodeExists, NoSuchNode
from ledger.metastore.base import MetadataStore
from ledger.metastore.ledgers import LedgerStore

FORMAT = "ledgerstream-metadata"
VERSION = 1
_OWN = "/ledgerstream"
_OF_SESSIONS = ("{root}/available", f"{_OWN}/clients", f"{_OWN}/restores", f"{_OWN}/bookies")
"""Registrations, and what only the newest metadata may say."""
_LAST = "pages"
"""Nodes of a namespace that others name, and that are there before they are named."""


@dataclass(frozen=True, slots=True)
class Backup:
    """A decoded backup."""

    root: str
    next_ledger_id: int
    nodes: Sequence[tuple[str, bytes]]


async def export_lines(store: MetadataStore, root: str) -> AsyncIterator[str]:
    """Yields the lines of a backup of the cluster at `root`.

    Raises InvalidArgument if there is no cluster, MetadataUnavailable.
    """
    try:
        await store.get(f"{root}/LAYOUT")
    except NoSuchNode:
        raise InvalidArgument(f"there is no cluster at {root}: nothing to export") from None
    yield json.dumps({"format": FORMAT, "version": VERSION, "root": root})
    left_out = tuple(path.format(root=root) for path in _OF_SESSIONS)
    count = 0
    for top in (_OWN, root):
        async for path, data in _nodes(store, top, left_out):
            count += 1
            yield json.dumps({"path": path, "data": base64.b64encode(data).decode()})
    next_id = await LedgerStore(store, root).next_ledger_id()
    yield json.dumps({"nodes": count, "next_ledger_id": next_id})


async def _nodes(
    store: MetadataStore, top: str, left_out: Sequence[str]
) -> AsyncIterator[tuple[str, bytes]]:
    waiting = [top]
    while waiting:
        path = waiting.pop()
        if path in left_out:
            continue
        try:
            yield path, (await store.get(path)).data
        except NoSuchNode:
            continue  # deleted meanwhile
        names = await store.children(path)
        names.sort(key=lambda name: name == _LAST)  # stays in order otherwise
        waiting += [f"{path}/{name}" for name in reversed(names)]


def decode_backup(lines: Iterable[str]) -> Backup:
    """Returns the backup in these lines. Raises InvalidArgument, naming the line."""
    header: dict[str, object] = {}
    nodes: list[tuple[str, bytes]] = []
    end: dict[str, object] | None = None
    for number, line in enumerate(lines, 1):
        document = _line(number, line)
        if number == 1:
            if document.get("format") != FORMAT or document.get("version") != VERSION:
                raise InvalidArgument(f"line 1 is not the header of {FORMAT} version {VERSION}")
            header = document
        elif end is not None:
            raise InvalidArgument(f"line {number} follows the end of the backup")
        elif "nodes" in document:
            end = document
        else:
            nodes.append(_node(number, document))
    if end is None or end["nodes"] != len(nodes):
        raise InvalidArgument(
            f"the backup ends after {len(nodes)} nodes"
            + ("; the file was cut short" if end is None else f", it must have {end['nodes']}")
        )
    root, next_id = header.get("root"), end.get("next_ledger_id")
    if not isinstance(root, str) or not isinstance(next_id, int) or next_id < 0:
        raise InvalidArgument("the backup names no root, or no next ledger id")
    return Backup(root, next_id, nodes)


def _line(number: int, line: str) -> dict[str, object]:
    try:
        document = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"line {number} is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise InvalidArgument(f"line {number} is not a JSON object")
    return document


def _node(number: int, document: dict[str, object]) -> tuple[str, bytes]:
    path, data = document.get("path"), document.get("data")
    if not isinstance(path, str) or not isinstance(data, str):
        raise InvalidArgument(f"line {number} has no path or no data")
    try:
        return path, base64.b64decode(data, validate=True)
    except ValueError as error:
        raise InvalidArgument(f"line {number}: data is not base64: {error}") from None


async def import_backup(store: MetadataStore, root: str, backup: Backup) -> int:
    """Creates the cluster of a backup at `root`, where there must be none; returns the number of
    nodes. After an error that left a part of it behind, import into an empty store.

    Raises InvalidArgument if there is a cluster, MetadataUnavailable.
    """
    for path in (root, f"{_OWN}/namespaces"):
        if await store.children(path):
            raise InvalidArgument(
                f"there is a cluster already ({path} has nodes): an import makes a new one. Cure: "
                "name an empty store"
            )
    # LAYOUT last: without it bookies and clients know that there is no cluster yet.
    for path, data in _last(backup.nodes, f"{backup.root}/LAYOUT"):
        if path == backup.root or path.startswith(f"{backup.root}/"):
            path = root + path.removeprefix(backup.root)
        try:
            await store.create(path, data)
        except NodeExists:  # the parent of one before
            await store.put(path, data)
    if backup.next_ledger_id:
        await LedgerStore(store, root).next_ledger_id(beyond=backup.next_ledger_id - 1)
    return len(backup.nodes)


def _last(nodes: Iterable[tuple[str, bytes]], path: str) -> Iterator[tuple[str, bytes]]:
    last = []
    for node in nodes:
        if node[0] == path:
            last.append(node)
        else:
            yield node
    yield from last
