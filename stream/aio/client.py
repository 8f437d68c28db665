"""The cluster, for what is done to whole namespaces and by janitors."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

from ledger.client import LedgerClient as TrioLedgerClient
from ledger.credentials import Credentials
from ledger.options import ClientOptions
from ledger.runtime.opening import Opened, opening
from stream.aio.bridge import Bridge, open_bridge


class LedgerClient(Opened):
    """A connection to a cluster, which several namespaces may share. Made by `connect`.

    Ledgers themselves are worked with in trio: see `ledger.LedgerClient`.
    """

    _bridge: Bridge
    _inner: TrioLedgerClient

    @classmethod
    @opening
    async def connect(
        cls,
        cluster: str,
        *,
        options: ClientOptions | None = None,
        credentials: str | Path | Credentials | None = None,
    ) -> AsyncIterator[LedgerClient]:
        """A client of the cluster at this URI, e.g. "sqlite:///var/lib/cluster.db".

        `credentials`, a file ("admin.toml") or `Credentials`, are for a cluster that authenticates
        clients (`ledger.LedgerClient.connect`). Creates nothing. Raises NoSuchCluster if there is
        no cluster, InvalidArgument for an address that no driver can serve or a file that cannot be
        used, MetadataUnavailable.
        """
        async with (
            open_bridge() as bridge,
            bridge.hold(
                lambda: TrioLedgerClient.connect(cluster, options=options, credentials=credentials)
            ) as inner,
        ):
            yield cls._of(bridge, inner)

    @classmethod
    async def open(
        cls,
        cluster: str,
        *,
        options: ClientOptions | None = None,
        credentials: str | Path | Credentials | None = None,
    ) -> LedgerClient:
        """Opens what `connect` opens, with its arguments and errors: `close` it."""
        return await cls.connect(cluster, options=options, credentials=credentials).open()

    async def close(self) -> None:
        """Closes a client that was opened without a block. Idempotent."""
        await self._leave()

    @classmethod
    def _of(cls, bridge: Bridge, inner: TrioLedgerClient) -> LedgerClient:
        made = cls.__new__(cls)
        made._bridge, made._inner = bridge, inner
        return made
