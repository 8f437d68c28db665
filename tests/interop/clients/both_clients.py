"""Both clients on bookies of both kinds, and the checks of a ledger that they share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import trio

from ledger.core.entry import DigestType
from ledger.core.metadata import LedgerMetadata
from ledger.metastore import open_store
from tests.interop.conftest import GetSharedJava
from tests.interop.java_client import from_base64, payload
from tests.interop.mixed_bookies import BookieProcess, MixedBookies, open_mixed_bookies
from tests.interop.replicas import read_replicas, replica_faults
from tests.interop.takeover.clients import (
    PLACEMENT_KEY,
    PacedWriter,
    PythonPacedWriter,
    PythonTakeoverClient,
    TakeoverClient,
)
from tests.interop.takeover.java_client import PLACEMENT, JavaTakeoverClient, java_digest
from tests.interop.takeover.judge import LedgerEnd, WriterResult
from tests.interop.takeover.plan import Language, Pace, Shape
from tests.interop.timeouts import PATIENCE_S

Cluster = tuple[str, Mapping[str, BookieProcess]]

SIZES = (0, 1, 17, 300, 4096, 70_000)
WINDOW = 8
ENTRIES = 30


@dataclass(slots=True)
class BothClients:
    """Both clients, and the bookies that they use in a test."""

    processes: MixedBookies
    python: PythonTakeoverClient
    java: JavaTakeoverClient
    bookies: tuple[str, ...]

    def client_of(self, language: Language) -> TakeoverClient:
        return self.python if language is Language.PYTHON else self.java


@asynccontextmanager
async def open_both_clients(
    cluster: Cluster,
    java: GetSharedJava,
    version: str,
    names: Sequence[str],
    *,
    v2: bool = False,
    **settings: Any,
) -> AsyncIterator[BothClients]:
    uri, bookies = cluster
    client = java(version, uri, v2=v2, **PLACEMENT, **settings)
    with trio.fail_after(PATIENCE_S):
        async with open_store(uri) as store, open_mixed_bookies(bookies) as processes:
            await processes.wait_serving(names)
            ids = processes.ids(names)
            async with trio.open_nursery() as nursery:
                python = PythonTakeoverClient(store, nursery, ids, f"{names}")
                yield BothClients(
                    processes, python, JavaTakeoverClient(client, client, uri, ids), ids
                )
                nursery.cancel_scope.cancel()


def pace_of(seed: int, count: int = ENTRIES, pause_ms: float = 0.0) -> Pace:
    sizes = tuple(SIZES[i % len(SIZES)] for i in range(count))
    return Pace(seed, sizes, (pause_ms,) * count, WINDOW)


def payloads_of(pace: Pace, count: int | None = None) -> list[bytes]:
    return [payload(pace.seed, i, size) for i, size in enumerate(pace.sizes[:count])]


async def end_ledger(
    here: BothClients, writer: PacedWriter, by: Language | None, shape: Shape, password: bytes
) -> WriterResult:
    """Lets the writer close the ledger, or a client recover it while the writer lives."""
    if by is None:
        await writer.begin_close()
        saw = await writer.finish()
        assert saw.closed_at == saw.acked[-1]
        # Apache's writer drops what is in flight when it closes.
        assert saw.error in (None, "LedgerClosed")
    else:
        end = await here.client_of(by).recover(writer.ledger_id, shape, password)
        saw = await writer.finish()
        # When an entry fails with "fenced", Apache's writer closes its handle a step later. If the
        # other bookies confirm that entry in between, the next append fails with a closed handle.
        is_ours = isinstance(writer, PythonPacedWriter)
        assert saw.error == "LedgerFenced" or (not is_ours and saw.error == "LedgerClosed")
        assert saw.acked == list(range(len(saw.acked)))
        assert saw.acked[-1] <= end.last_entry_id
    return saw


async def check_ledger(
    here: BothClients,
    ledger_id: int,
    shape: Shape,
    password: bytes,
    expected: Sequence[bytes],
    *,
    is_recovered: bool,
    is_on_all: bool = True,
    may_be_torn: Sequence[str] = (),
    lengths: Collection[int] = (),
) -> LedgerMetadata:
    """Checks that both clients see a closed ledger with these payloads, and that replicas agree.

    Args:
        lengths: values that the metadata may have instead of the entries' length, see
            `takeover.judge.lengths_by_java`.
    """
    metadata = await here.python.metadata(ledger_id)
    length = metadata.length if metadata.length in lengths else sum(map(len, expected))
    end = LedgerEnd(len(expected) - 1, length)
    for language in Language:
        found_end, read = await here.client_of(language).read_closed(ledger_id, shape, password)
        assert found_end == end, f"{language} reports {found_end}"
        assert read == list(expected), f"{language} reads other payloads"
    assert LedgerEnd(metadata.last_entry_id, metadata.length) == end
    assert_same_metadata(await here.java.metadata(ledger_id), metadata)
    # An entry has a LAC at most a window before it, and recovery finds at most a window more than
    # was acknowledged to the writer.
    recovered_from = len(expected) - 2 * WINDOW if is_recovered else None
    async with here.python.client() as client:
        while True:
            replicas = await read_replicas(client.pool, metadata)
            found = replica_faults(
                metadata,
                replicas,
                recovered_from=recovered_from,
                is_on_all=is_on_all,
                is_length_doubtful=metadata.length in lengths,
                may_be_torn=may_be_torn,
            )
            if not any("is on" in fault for fault in found):
                break
            await trio.sleep(0.1)  # an entry with two acknowledgements may still be in flight
    names = {bookie: here.processes.name_of(bookie) for bookie in here.bookies}
    assert not found, f"ledger {ledger_id}, bookies {names}:\n" + "\n".join(found)
    return metadata


def assert_same_metadata(java: dict[str, Any], ours: LedgerMetadata) -> None:
    """Checks that the Java client decodes the metadata as the Python client does."""
    assert java == {
        "ledger": ours.ledger_id,
        "ensemble_size": ours.ensemble_size,
        "write_quorum": ours.write_quorum,
        "ack_quorum": ours.ack_quorum,
        "state": ours.state.name,
        "last": ours.last_entry_id,
        "length": ours.length,
        "closed": ours.is_closed,
        "has_password": True,
        "created_ms": ours.created_ms,
        "c_token": java["c_token"],  # of the creation, which has ended
        "format_version": ours.format_version,
        "digest": java_digest(ours.digest_type or DigestType.CRC32),
        "password": java["password"],
        "fragments": [
            {"first": fragment.first_entry_id, "bookies": list(fragment.bookies)}
            for fragment in ours.fragments
        ],
        "custom": java["custom"],
    }
    assert from_base64(java["password"]) == ours.password
    custom = {name: from_base64(value) for name, value in java["custom"].items()}
    assert custom == dict(ours.custom)
    assert PLACEMENT_KEY in custom
