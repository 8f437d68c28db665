"""Auto-recovery in the process of a bookie: a worker that is also a candidate for the auditor."""

from __future__ import annotations

import random
import time

from bookie.config import BookieConfig
from ledger.metastore.address import ClusterAddress
from ledger.metastore.base import MetadataStore
from ledger.runtime.network import TcpNetwork


async def heal_ledgers(config: BookieConfig, store: MetadataStore, bookie_id: str) -> None:
    """Heals ledgers until cancelled, over the bookie's session. No error of it ends the bookie."""
    # They take memory that a bookie without auto-recovery does not need.
    from ledger.autorecovery.service import heal_for_ever
    from ledger.client import LedgerClient

    async with LedgerClient(
        store,
        TcpNetwork(),
        rng=random.SystemRandom(),
        now_ms=lambda: time.time_ns() // 1_000_000,
        root=config.ledgers_root,
        layout=ClusterAddress.parse(config.metadata_uri).layout,
    ) as client:
        await heal_for_ever(client, config.autorecovery_options(), bookie_id=bookie_id)
