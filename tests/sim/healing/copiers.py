"""The copier of the simulated healers: exchangeable, so that its own bugs can be recognized."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ledger.autorecovery.copier import Copier
from ledger.autorecovery.options import AutoRecoveryOptions
from ledger.client import LedgerClient


@asynccontextmanager
async def open_copier(client: LedgerClient, options: AutoRecoveryOptions) -> AsyncIterator[Copier]:
    """Opens the copier of one process."""
    async with Copier(client, options.copier_options()) as copier:
        yield copier
