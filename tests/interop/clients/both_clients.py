"""Both clients before bookies of both kinds, and what must hold of a ledger they share."""

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
from tests.interop.mixed_bookies import BookieProcess, Stage, open_stage
from tests.interop.replicas import read_replicas, replica_faults
from tests.interop.takeover.clients import (
    PLACEMENT_KEY,
    OurPacedWriter,
    PacedWriter,
    PythonSide,
    Side,
)
from tests.interop.takeover.java_client import PLACEMENT, JavaSide, java_digest
from tests.interop.takeover.judge import End, WriterSaw
from tests.interop.takeover.plan import Language, Pace, Shape
from tests.interop.timeouts import PATIENCE_S

Cluster = tuple[str, Mapping[str, BookieProcess]]

SIZES = (0, 1, 17, 300, 4096, 70_000)
WINDOW = 8
ENTRIES = 30


@dataclass(slots=True)
class Company:
    """Both clients, and the bookies that they use in this test."""

    stage: Stage
    python: PythonSide
    java: JavaSide
    bookies: tuple[str, ...]

    def side(self, language: Language) -> Side:
        return self.python if language is Language.PYTHON else self.java


@asynccontextmanager
async def company(
    cluster: Cluster,
    java: GetSharedJava,
    version: str,
    names: Sequence[str],
    *,
    v2: bool = False,
    **settings: Any,
) -> AsyncIterator[Company]:
    uri, bookies = cluster
    client = java(version, uri, v2=v2, **PLACEMENT, **settings)
    with trio.fail_after(PATIENCE_S):
        async with open_store(uri) as store, open_stage(bookies) as stage:
            await stage.wait_serving(names)
            ids = stage.ids(names)
            async with trio.open_nursery() as nursery:
                python = PythonSide(store, nursery, ids, f"{names}")
                yield Company(stage, python, JavaSide(client, client, uri, ids), ids)
                nursery.cancel_scope.cancel()


def pace_of(seed: int, count: int = ENTRIES, pause_ms: float = 0.0) -> Pace:
    sizes = tuple(SIZES[i % len(SIZES)] for i in range(count))
    return Pace(seed, sizes, (pause_ms,) * count, WINDOW)


def payloads_of(pace: Pace, count: int | None = None) -> list[bytes]:
    return [payload(pace.seed, i, size) for i, size in enumerate(pace.sizes[:count])]


async def end_ledger(
    here: Company, writer: PacedWriter, by: Language | None, shape: Shape, password: bytes
) -> WriterSaw:
    """The writer closes it, or a client recovers it while the writer lives."""
    if by is None:
        await writer.begin_close()
        saw = await writer.finish()
        assert saw.closed_at == saw.acked[-1]
        # Apache's writer drops what is in flight when it closes.
        assert saw.error in (None, "LedgerClosed")
    else:
        end = await here.side(by).recover(writer.ledger_id, shape, password)
        saw = await writer.finish()
        # Apache's writer, told "fenced" for an entry, closes its handle a step later. If the other
        # bookies confirm that entry in between, nothing is left to fail, and who appends next is
        # told of a closed handle.
        is_ours = isinstance(writer, OurPacedWriter)
        assert saw.error == "LedgerFenced" or (not is_ours and saw.error == "LedgerClosed")
        assert saw.acked == list(range(len(saw.acked)))
        assert saw.acked[-1] <= end.last_entry_id
    return saw


async def check_ledger(
    here: Company,
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
    """Both clients see one closed ledger with these payloads, and all replicas agree.

    Args:
        lengths: what the metadata may state instead of the entries' length, see
            `story.lengths_by_java`.
    """
    metadata = await here.python.metadata(ledger_id)
    length = metadata.length if metadata.length in lengths else sum(map(len, expected))
    end = End(len(expected) - 1, length)
    for language in Language:
        told, read = await here.side(language).read_closed(ledger_id, shape, password)
        assert told == end, f"{language} says {told}"
        assert read == list(expected), f"{language} reads other payloads"
    assert End(metadata.last_entry_id, metadata.length) == end
    assert_same_metadata(await here.java.metadata(ledger_id), metadata)
    # An entry names a LAC at most a window before it, and recovery finds at most a window more
    # than the writer was told.
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
            await trio.sleep(0.1)  # what was acknowledged by two may still be on its way
    names = {bookie: here.stage.name_of(bookie) for bookie in here.bookies}
    assert not found, f"ledger {ledger_id}, bookies {names}:\n" + "\n".join(found)
    return metadata


def assert_same_metadata(java: dict[str, Any], ours: LedgerMetadata) -> None:
    """What Java's client understands is what ours does."""
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
        "c_token": java["c_token"],  # of the creation, which is over
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
