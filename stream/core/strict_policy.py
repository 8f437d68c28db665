"""The policy of a merged ledger: as strict as that of the namespace, and as the ledgers before it.

Decides only which bookies there must be; whether they are there is found when the ledger is made.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ledger.core.metadata import LedgerMetadata
from ledger.core.placement.policies import MINIMUM_DEFAULT, placement_of
from stream.core.metadata.namespaces import NamespaceMetadata

_DIGESTS: Final = ("DUMMY", "CRC32", "CRC32C", "HMAC")
_PLACEMENTS: Final = ("default", "rack", "zone", "region")
"""The weakest first."""


def as_strict(policy: NamespaceMetadata, of: LedgerMetadata) -> NamespaceMetadata:
    """Returns a policy with at least the copies, digest and placement of both: what is merged has
    no fewer copies, nor any nearer to each other, than before. Raises InvalidArgument if there is
    none, because of what a policy may combine."""
    digest = policy.digest_type if of.digest_type is None else of.digest_type.name
    placement = placement_of(of.custom)
    both = (policy.bookie_placement, placement)
    minima = [one.minimum for one in both if not one.is_default] or [0]
    return replace(
        policy,
        # A larger ensemble has no more copies, and may be more bookies than there are left.
        ensemble_size=max(policy.ensemble_size, of.write_quorum),
        write_quorum=max(policy.write_quorum, of.write_quorum),
        ack_quorum=max(policy.ack_quorum, of.ack_quorum),
        digest_type=max(policy.digest_type, digest, key=_DIGESTS.index),
        placement_policy=max(policy.placement_policy, placement.kind, key=_PLACEMENTS.index),
        placement_min=max(minima, key=lambda minimum: minimum or MINIMUM_DEFAULT),
        placement_enforce=policy.placement_enforce or placement.enforce,
    )


def bookies_of(policy: NamespaceMetadata) -> tuple[object, ...]:
    """What decides which bookies there must be."""
    return policy.ensemble_size, policy.write_quorum, policy.bookie_placement
