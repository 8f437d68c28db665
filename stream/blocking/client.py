"""The cluster, for what is done to whole namespaces and by janitors.

Generated from stream/aio by `make faces`. Not to be edited.
"""

from __future__ import annotations

from collections.abc import Iterator

from ledger.client import LedgerClient as TrioLedgerClient
from ledger.options import ClientOptions
from stream.blocking.bridge import Bridge, open_bridge
from stream.blocking.opening import Opened, opening


class LedgerClient(Opened):
    """A connection to a cluster, which several namespaces may share. Made by `connect`.

    Ledgers themselves are worked with in trio: see `ledger.LedgerClient`.
    """

    _bridge: Bridge
    _inner: TrioLedgerClient

    @classmethod
    @opening
    def connect(
        cls, cluster: str, *, options: ClientOptions | None = None
    ) -> Iterator[LedgerClient]:
        """A client of the cluster at this URI, e.g. "sqlite:///var/lib/cluster.db".

        Creates nothing. Raises NoSuchCluster if there is no cluster, InvalidArgument for an address
        that no driver can serve, MetadataUnavailable.
        """
        with (
            open_bridge() as bridge,
            bridge.hold(lambda: TrioLedgerClient.connect(cluster, options=options)) as inner,
        ):
            yield cls._of(bridge, inner)

    @classmethod
    def open(cls, cluster: str, *, options: ClientOptions | None = None) -> LedgerClient:
        """Opens what `connect` opens, with its arguments and errors: `close` it."""
        return cls.connect(cluster, options=options).open()

    def close(self) -> None:
        """Closes a client that was opened without a block. Idempotent."""
        self._leave()

    @classmethod
    def _of(cls, bridge: Bridge, inner: TrioLedgerClient) -> LedgerClient:
        made = cls.__new__(cls)
        made._bridge, made._inner = bridge, inner
        return made
