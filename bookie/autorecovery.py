"""Auto-recovery in the process of a bookie: a worker that is also a candidate for the auditor."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from bookie.config import BookieConfig
from ledger.core.ledger_keys import NO_KEYS, LedgerKeys
from ledger.metastore.address import ClusterAddress
from ledger.metastore.base import MetadataStore
from ledger.runtime.network import Network

if TYPE_CHECKING:
    from ledger.autorecovery.service import AutoRecovery


async def heal_ledgers(
    config: BookieConfig,
    store: MetadataStore,
    bookie_id: str,
    *,
    network: Network,
    now_ms: Callable[[], int],
    rng: random.Random,
    keys: LedgerKeys = NO_KEYS,
    on_begin: Callable[[AutoRecovery], None] = lambda _service: None,
) -> None:
    """Heals ledgers until cancelled, over the bookie's session. No error of it ends the bookie.
    `keys`: the secrets of the cluster. `on_begin` gets the service, each time that it begins."""
    # They take memory that a bookie without auto-recovery does not need.
    from ledger.autorecovery.service import heal_for_ever
    from ledger.client import LedgerClient

    async with LedgerClient(
        store,
        network,
        rng=rng,
        now_ms=now_ms,
        options=config.client_options(),
        root=config.ledgers_root,
        layout=ClusterAddress.parse(config.metadata_uri).layout,
        keys=keys,
    ) as client:
        await heal_for_ever(
            client,
            config.autorecovery_options(),
            bookie_id=bookie_id,
            rng=rng,
            on_begin=on_begin,
        )
