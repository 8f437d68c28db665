"""The request by which a bookie is shown the key of a ledger: an explicit LAC of -1.

It changes nothing but that the key becomes known where the ledger was not. A bookie that has the
ledger under another key refuses it, so it also proves that the metadata of a ledger is that of the
entries which the bookie has.
"""

from __future__ import annotations

from ledger.connection.pool import BookiePool
from ledger.core.entry import Digest, DigestType, master_key
from ledger.core.ledger_keys import LedgerKeys
from ledger.core.metadata import LedgerMetadata
from ledger.errors import INVALID_ENTRY_ID, Status, Unauthorized, error_of_status
from ledger.wire.messages import ReadLacRequest, WriteLacRequest


def claim_request(metadata: LedgerMetadata) -> WriteLacRequest:
    """Returns the request with the key that the metadata implies."""
    digest = Digest(metadata.digest_type or DigestType.CRC32C, metadata.password)
    packet = digest.encode_lac(metadata.ledger_id, INVALID_ENTRY_ID)
    key = master_key(metadata.password)
    return WriteLacRequest(metadata.ledger_id, INVALID_ENTRY_ID, key, packet)


def must_show_key(metadata: LedgerMetadata, keys: LedgerKeys) -> bool:
    """Returns whether a copy of a ledger's entries may be made only under a key that their bookie
    was shown: in each cluster with a secret, whatever the metadata says, since clients can write
    that. `keys` are those of this process."""
    return keys.has_secret or metadata.has_derived_key


async def is_key_of(
    pool: BookiePool, bookie: str, metadata: LedgerMetadata, *, timeout_s: float
) -> bool:
    """Returns whether a bookie that has the ledger has it under the key that the metadata implies.

    A bookie whose disks are full refuses another key, and cannot store this one. One of Apache's
    does not look at the key then, and counts as one that has it. Raises LedgerError if the bookie
    does not say.
    """
    answer = await pool.call(bookie, claim_request(metadata), timeout_s=timeout_s)
    if answer.status not in (Status.OK, Status.READ_ONLY, Status.UNAUTHORIZED):
        what = f"key of ledger {metadata.ledger_id} at {bookie}"
        raise error_of_status(answer.status, what)
    return answer.status is not Status.UNAUTHORIZED


async def check_key_at(
    pool: BookiePool, bookie: str, metadata: LedgerMetadata, *, timeout_s: float
) -> None:
    """Raises Unauthorized if a bookie has a ledger under another key than its metadata implies:
    then a client has changed that. Raises another LedgerError if it does not say.

    A bookie that has nothing of the ledger is not told the key.
    """
    known = await pool.call(bookie, ReadLacRequest(metadata.ledger_id), timeout_s=timeout_s)
    if known.status in (Status.NO_SUCH_LEDGER, Status.NO_SUCH_ENTRY):
        return
    if not await is_key_of(pool, bookie, metadata, timeout_s=timeout_s):
        raise Unauthorized(other_key(metadata, bookie))


def other_key(metadata: LedgerMetadata, bookie: str) -> str:
    """Returns what to say of a bookie that has the ledger under another key."""
    return (
        f"bookie {bookie} has ledger {metadata.ledger_id} under another key than its metadata "
        "implies, so that the metadata is not that of its entries. Cure: put the namespace and "
        "the key in its custom metadata right"
    )
