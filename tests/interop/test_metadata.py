"""Ledger metadata: each side reads what the other writes, with the same meaning.

Metadata is compared with Apache's running LedgerMetadataSerDe, thousands of times; the nodes of
a cluster are compared with those that Apache's tools and bookies create in the same ZooKeeper.
"""

from __future__ import annotations

import random
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest

from ledger.core.entry import DigestType
from ledger.core.metadata import Fragment, LedgerMetadata, LedgerState
from ledger.core.metadata_format import decode, encode
from ledger.errors import MetadataCorrupt
from tests.interop.conftest import GetVm
from tests.interop.java_client import Answer, JavaError, JavaVm, from_base64
from tests.interop.takeover.java_client import java_digest
from tests.interop.timeouts import PATIENCE_S

pytestmark = pytest.mark.interop

CASES = 2000
SEED = 20_260_101
ID_CHARACTERS = "abcXYZ019:-_."
ENTRY_IDS = (0, 1, 9, 127, 128, 2**31 - 1, 2**31, 2**53, 2**63 - 2)
TEXTS = ("", "application", "ü", "€ \n\t\"'\\", "a" * 300, "\x00\x7f", "pulsar/cursor-name")
BEYOND_16_BITS = "😀"
"""The text of version 4.18.0 has question marks for it."""
NODE_CREATED_MS = 1_700_000_000_000

formats = pytest.mark.parametrize("format_version", [1, 2, 3])


def in_words(area_feature: str) -> pytest.MarkDecorator:
    return pytest.mark.interop_result(area="metadata", feature=area_feature)


def random_metadata(rng: random.Random, format_version: int) -> LedgerMetadata:
    """Returns random metadata that Apache's builder can make."""
    ensemble_size = rng.randint(1, 7)
    write_quorum = rng.randint(1, ensemble_size)
    starts = sorted({0, *(rng.choice(ENTRY_IDS) for _ in range(rng.randrange(4)))})
    state = rng.choice(list(LedgerState))
    is_closed = state is LedgerState.CLOSED
    stores_created_ms = rng.random() < 0.5 and format_version > 1
    texts = TEXTS if format_version == 2 else (*TEXTS, BEYOND_16_BITS)
    return LedgerMetadata(
        ledger_id=rng.choice(ENTRY_IDS),
        ensemble_size=ensemble_size,
        write_quorum=write_quorum,
        ack_quorum=rng.randint(1, write_quorum) if format_version > 1 else write_quorum,
        state=state,
        fragments=tuple(
            Fragment(start, tuple(random_bookies(rng, ensemble_size))) for start in starts
        ),
        # Apache's builder writes neither version 2 nor 3 without a digest type.
        digest_type=rng.choice(list(DigestType)) if format_version > 1 else None,
        password=random_bytes(rng) if format_version > 1 else b"",
        last_entry_id=rng.choice((-1, *ENTRY_IDS)) if is_closed else -1,
        length=rng.choice(ENTRY_IDS) if is_closed else 0,
        created_ms=rng.choice(ENTRY_IDS) if stores_created_ms else -1,
        stores_created_ms=stores_created_ms,
        custom={rng.choice(texts): random_bytes(rng) for _ in range(rng.randrange(4))}
        if format_version > 1
        else {},
        c_token=rng.getrandbits(62) if format_version > 2 else 0,
        format_version=format_version,
    )


def random_bookies(rng: random.Random, count: int) -> list[str]:
    found: dict[str, None] = {}
    while len(found) < count:
        found["".join(rng.choices(ID_CHARACTERS, k=rng.randint(1, 30)))] = None
    return list(found)


def random_bytes(rng: random.Random) -> bytes:
    return rng.choice((b"", b"secret", bytes(range(256)), rng.randbytes(rng.randrange(40))))


def is_canonical(metadata: LedgerMetadata) -> bool:
    """Returns whether the encoding is unique.

    Java orders custom metadata by hash, and its text format has names for four control characters
    that Python writes in octal.
    """
    values = (metadata.password, *metadata.custom.values())
    has_names = metadata.format_version == 2 and any(set(b"\a\b\f\v") & {*v} for v in values)
    return len(metadata.custom) < 2 and not has_names


def as_java_says(metadata: LedgerMetadata) -> Answer:
    """Returns the metadata in the driver's form."""
    said: Answer = {
        "ledger": metadata.ledger_id,
        "ensemble_size": metadata.ensemble_size,
        "write_quorum": metadata.write_quorum,
        "ack_quorum": metadata.ack_quorum,
        "state": metadata.state.name,
        "last": metadata.last_entry_id,
        "length": metadata.length,
        "closed": metadata.is_closed,
        "has_password": metadata.digest_type is not None,
        "created_ms": metadata.created_ms,
        "c_token": metadata.c_token,
        "format_version": metadata.format_version,
        "fragments": [
            {"first": fragment.first_entry_id, "bookies": list(fragment.bookies)}
            for fragment in metadata.fragments
        ],
        "custom": dict(metadata.custom),
    }
    if metadata.digest_type is not None:
        said |= {"digest": java_digest(metadata.digest_type), "password": metadata.password}
    return said


def decoded_answer(answer: Answer) -> Answer:
    """Decodes the base64 in a response of the driver."""
    answer["custom"] = {name: from_base64(value) for name, value in answer["custom"].items()}
    if "password" in answer:
        answer["password"] = from_base64(answer["password"])
    return answer


def java_encode(vm: JavaVm, metadata: LedgerMetadata) -> Future[Answer]:
    arguments = as_java_says(metadata)
    if not metadata.stores_created_ms:
        del arguments["created_ms"]
    return vm.request("serde_encode", **arguments)


def java_decode(vm: JavaVm, ledger_id: int, data: bytes, **more: Any) -> Answer:
    return decoded_answer(vm.call_sync("serde_decode", ledger=ledger_id, data=data, **more))


@in_words("metadata written by one side is read by the other, format 1, 2 and 3")
@formats
def test_random_metadata_has_the_same_meaning_for_both(
    java_vm: GetVm, version: str, format_version: int
) -> None:
    vm = java_vm(version)
    rng = random.Random(SEED + format_version)
    cases = [random_metadata(rng, format_version) for _ in range(CASES // 3)]
    encoded = [java_encode(vm, metadata) for metadata in cases]
    decoded = [
        vm.request("serde_decode", ledger=metadata.ledger_id, data=encode(metadata))
        for metadata in cases
    ]
    same_bytes = 0
    for metadata, theirs, ours in zip(cases, encoded, decoded, strict=True):
        data = from_base64(theirs.result(PATIENCE_S)["data"])
        assert decode(metadata.ledger_id, data) == metadata
        assert decoded_answer(ours.result(PATIENCE_S)) == as_java_says(metadata)
        if is_canonical(metadata):
            assert encode(metadata) == data
            same_bytes += 1
    assert same_bytes > len(cases) // 4


@in_words("fields that old clients leave out have the same meaning")
def test_missing_fields_have_the_same_meaning_for_both(java_vm: GetVm, version: str) -> None:
    vm = java_vm(version)
    whole = replace(random_metadata(random.Random(SEED), 2), ledger_id=7, created_ms=-1)
    lines = encode(replace(whole, stores_created_ms=False)).splitlines(keepends=True)
    tested = 0
    for missing in ((b"ackQuorumSize",), (b"digestType", b"password"), (b"ctime",)):
        data = b"".join(line for line in lines if not line.startswith(missing))
        ours = decode(7, data, NODE_CREATED_MS)
        theirs = java_decode(vm, 7, data, node_created_ms=NODE_CREATED_MS)
        assert theirs == as_java_says(ours)
        assert ours.created_ms == NODE_CREATED_MS
        tested += 1
    assert tested == 3


@in_words("custom metadata in any script")
def test_java_reads_what_it_cannot_write(java_vm: GetVm, version: str) -> None:
    metadata = random_metadata(random.Random(SEED), 2)
    metadata = replace(metadata, custom={f"a{BEYOND_16_BITS}ü": BEYOND_16_BITS.encode()})
    data = encode(metadata)
    assert java_decode(java_vm(version), metadata.ledger_id, data) == as_java_says(metadata)


@in_words("fields of later releases: read by both, kept by us")
def test_unknown_fields_are_read_by_both(java_vm: GetVm, version: str) -> None:
    vm = java_vm(version)
    metadata = replace(random_metadata(random.Random(SEED), 3), unknown_fields=b"\xf8\x07\x01")
    data = encode(metadata)
    assert decode(metadata.ledger_id, data) == metadata
    assert java_decode(vm, metadata.ledger_id, data) == as_java_says(metadata)


@in_words("damaged metadata is refused")
def test_java_reads_accepted_damaged_metadata_alike(java_vm: GetVm, version: str) -> None:
    """Java accepts more metadata; both agree on all that ledgerstream accepts."""
    vm = java_vm(version)
    rng = random.Random(SEED)
    accepted: list[tuple[LedgerMetadata, Future[Answer]]] = []
    refused = 0
    for number in range(600):
        metadata = random_metadata(rng, 1 + number % 3)
        data = bytearray(encode(metadata))
        for _ in range(rng.randint(1, 3)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            ours = decode(metadata.ledger_id, bytes(data))
        except MetadataCorrupt:
            refused += 1
        else:
            request = vm.request("serde_decode", ledger=metadata.ledger_id, data=bytes(data))
            accepted.append((ours, request))
    assert refused > 100
    assert len(accepted) > 50
    for ours, request in accepted:
        try:
            theirs = decoded_answer(request.result(PATIENCE_S))
        except JavaError:
            continue
        assert theirs == as_java_says(ours), f"{ours} and {theirs}"
