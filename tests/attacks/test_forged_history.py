"""Forged adds over acknowledged entries of a sealed segment: no byte of it changes, and nothing is
added to it."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import trio

from ledger.core.copies import CopyVerdict
from ledger.core.entry import Digest, DigestType, master_key
from ledger.core.metadata import LedgerMetadata
from ledger.errors import Status
from ledger.wire.messages import AddRequest, ReadRequest, ReadResponse
from tests.attacks.attackers import KINDS, Attacker, attackers, neighbor
from tests.attacks.clusters import OPERATOR, AttackedCluster, append, newest_ledger
from tests.stream.whole_streams import read_values

pytestmark = pytest.mark.system

VALUES = [b"%08d" % number for number in range(5)]
WAYS = [(version, is_recovery) for version in (2, 3) for is_recovery in (False, True)]
REFUSED_AS_STRANGER = {Status.UNAUTHORIZED, None}


def forged(ledger: LedgerMetadata, entry_id: int, *, is_recovery: bool) -> AddRequest:
    """An add with a valid digest, the ledger's key, and another payload."""
    digest = Digest(ledger.digest_type or DigestType.CRC32C, ledger.password)
    header, payload = digest.encode_entry(ledger.ledger_id, entry_id, -1, 9, b"a forgery")
    key, body = master_key(ledger.password), header + bytes(payload)
    return AddRequest(ledger.ledger_id, entry_id, key, body, is_recovery=is_recovery)


async def forge(
    attacker: Attacker, ledger: LedgerMetadata, bookie: int, entries: Iterable[int]
) -> set[Status | None]:
    """Sends forged adds of these entries in each way, and returns the answers."""
    answers = set()
    for version, is_recovery in WAYS:
        for entry_id in entries:
            async with attacker.connection(bookie, version) as connection:
                request = forged(ledger, entry_id, is_recovery=is_recovery)
                answers.add(await attacker.ask(connection, request))
    return answers


async def copies(target: AttackedCluster, ledger: LedgerMetadata) -> list[bytes]:
    """Returns the bytes of each entry at each bookie."""
    found: list[bytes] = []
    for bookie in target.bookies:
        async with neighbor(target, bookie) as connection:
            for entry_id in range(ledger.last_entry_id + 1):
                answer = await connection.call(ReadRequest(ledger.ledger_id, entry_id), 10)
                assert isinstance(answer, ReadResponse)
                found.append(bytes(answer.body or b""))
    return found


@attackers(*KINDS)
async def test_a_forged_add_changes_no_byte_of_a_sealed_segment(attacker: Attacker) -> None:
    target, stream = attacker.target, f"forged-{attacker.kind.replace(' ', '-')}"
    expected = {Status.BAD_REQUEST} if attacker.may_write else REFUSED_AS_STRANGER
    async with target.namespace() as namespace:
        await append(namespace, stream, VALUES)
        ledger = await newest_ledger(namespace, stream)
        assert ledger.is_closed
        before = await copies(target, ledger)
        assert len(before) == len(target.bookies) * (ledger.last_entry_id + 1)
        for bookie in target.bookies:
            assert await forge(attacker, ledger, bookie, {0, ledger.last_entry_id}) <= expected
        assert await copies(target, ledger) == before
        assert await read_values(namespace, stream) == VALUES
        assert (await namespace.verify(stream)).verdict is CopyVerdict.WHOLE
        await append(namespace, stream, [b"after"])
        assert await read_values(namespace, stream) == [*VALUES, b"after"]


@attackers("open")
async def test_nor_after_a_restart_and_nothing_is_added_behind_the_end(attacker: Attacker) -> None:
    target, stream = attacker.target, f"sealed-{attacker.kind}"
    async with target.namespace() as namespace:
        await append(namespace, stream, VALUES)
        ledger = await newest_ledger(namespace, stream)
        last = ledger.last_entry_id
        for is_killed in (False, True):
            if is_killed:
                target.processes.kill_bookie(1)
            assert await forge(attacker, ledger, 1, {0, last}) == {Status.BAD_REQUEST}
            with trio.fail_after(60):
                # A collection learns the ends of the ledgers that the last checkpoint has.
                while await forge(attacker, ledger, 1, {last + 1}) != {Status.FENCED}:
                    assert target.http(1, "PUT", "/api/v1/bookie/gc", OPERATOR)[0] == 200
            assert await forge(attacker, ledger, 1, {last + 1, last + 2, 10**12}) == {Status.FENCED}
        assert await read_values(namespace, stream) == VALUES
        assert (await namespace.verify(stream)).verdict is CopyVerdict.WHOLE
