"""LedgerClient: creates, opens, lists and deletes the ledgers of a cluster."""

from __future__ import annotations

import logging
import os
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

import trio

from ledger.connection.addresses import BookieAddresses
from ledger.connection.authentication import AuthProvider, auth_source
from ledger.connection.encryption import ClientTls
from ledger.connection.pool import BookiePool, BookieSpace, ask_space
from ledger.core.entry import DigestType
from ledger.core.ledger_keys import NO_KEYS, LedgerKeys
from ledger.core.metadata import LedgerMetadata, LedgerState
from ledger.core.placement.policies import DEFAULT_PLACEMENT, PlacementPolicy
from ledger.core.steady_clock import SteadyClock, jump_text
from ledger.credentials import Credentials
from ledger.errors import LedgerClosed, LedgerError
from ledger.metastore import ClusterAddress, open_metadata
from ledger.metastore.base import MetadataStore
from ledger.metastore.bookies import BookieRegistry
from ledger.metastore.clients import ClientRegistration
from ledger.metastore.cluster_secret import load_keys
from ledger.metastore.layout import Layout
from ledger.metastore.ledgers import CLIENT_TAG, LedgerStore
from ledger.metastore.restores import RestoreLog
from ledger.metastore.underreplication import UnderreplicationStore
from ledger.missed.copies import MissedCopies
from ledger.options import ClientOptions
from ledger.reading.opener import Opener
from ledger.reading.reader import LedgerReader
from ledger.runtime.network import Network, TcpNetwork
from ledger.runtime.opening import Closable, opening_in_task
from ledger.writing.creator import LedgerCreator
from ledger.writing.send_loop import SendLoop

if TYPE_CHECKING:
    from ledger.writing.writer import LedgerWriter

_log = logging.getLogger(__name__)

RESERVED_TAG = "ledgerstream-reserved"
"""Key in the custom metadata of a ledger that has no writer yet."""


class _Handle(Protocol):
    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...


HandleT = TypeVar("HandleT", bound=_Handle)


class Opening(Generic[HandleT]):
    """A handle that is being opened: `await` it, or use it in `async with`, which closes it."""

    def __init__(self, open_handle: Callable[[], Awaitable[HandleT]]) -> None:
        self._open_handle = open_handle
        self._handle: HandleT | None = None

    def __await__(self) -> Generator[object, object, HandleT]:
        return self._open_handle().__await__()

    async def __aenter__(self) -> HandleT:
        self._handle = await self._open_handle()
        return await self._handle.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._handle is not None
        await self._handle.__aexit__(kind, error, traceback)


class LedgerClient(Closable):
    """Creates, opens, lists and deletes ledgers. An `async with` object.

    Args:
        store: metadata of the cluster, with its session.
        network: how bookies are reached.
        options: timeouts and bounds.
        rng: choice of bookies, jitter.
        now_ms: wall clock in milliseconds, for times of creation and appending. A jump of more
            than a day is believed after an hour (`ledger.core.steady_clock`).
        root: the node of the metadata store below which ledgers are stored.
        layout: the layout that the ledgers must have there; None accepts any.
        auth: the client's identity, for bookies with a plugin of their own; else see `options`.
        keys: the secrets of the cluster, if any. `connect` reads the file of the options.
    """

    def __init__(
        self,
        store: MetadataStore,
        network: Network,
        *,
        rng: random.Random,
        now_ms: Callable[[], int],
        options: ClientOptions | None = None,
        root: str = "/ledgers",
        layout: Layout | None = None,
        auth: AuthProvider | None = None,
        keys: LedgerKeys = NO_KEYS,
    ) -> None:
        self.store = store
        self._cluster = f"the ledgers at {root}"
        self.options = options or ClientOptions()
        self.rng = rng
        self.now_ms = SteadyClock(now_ms, trio.current_time, _note_jump).now_ms
        self.ledgers = LedgerStore(store, root, layout=layout, keys=keys)
        self.bookies = BookieRegistry(store, root)
        self.underreplication = UnderreplicationStore(store, root, self.now_ms)
        self.addresses = BookieAddresses(self.bookies, direct_tls=self.options.tls == "direct")
        self.pool = BookiePool(
            network, self.addresses.resolve, self.options, rng,
            auth=auth_source(auth, self.options, rng), tls=ClientTls.of(self.options),
            is_ours=self.bookies.is_ours,
        )  # fmt: skip
        self.missed = MissedCopies(self.underreplication, rng)
        parts = (self.pool, self.ledgers, self.bookies, self.missed, self.options, rng)
        self._send_loop, self._opener = SendLoop(*parts), Opener(*parts)
        self._creator = LedgerCreator(
            self.pool, self.ledgers, self.bookies, ClientRegistration(store, rng),
            options=self.options, rng=rng, now_ms=self.now_ms, start=self.start_background,
        )  # fmt: skip
        self._nursery_manager: AbstractAsyncContextManager[trio.Nursery] | None = None
        self._nursery: trio.Nursery | None = None

    @classmethod
    @opening_in_task
    @asynccontextmanager
    async def connect(
        cls,
        cluster: str,
        *,
        options: ClientOptions | None = None,
        credentials: str | Path | Credentials | None = None,
        auth: AuthProvider | None = None,
    ) -> AsyncIterator[LedgerClient]:
        """Opens a client of the cluster at this address, e.g. "sqlite:///var/lib/cluster.db".

        `credentials` are a file ("admin.toml"), which may also say how connections are encrypted,
        or `Credentials`; without them `LEDGERSTREAM_CREDENTIALS` and the other variables of the
        command count. `auth` is for bookies with a plugin of their own. Creates nothing. Raises
        NoSuchCluster, InvalidArgument (an address or file that cannot be used), MetadataCorrupt (a
        file that is not a cluster's), MetadataUnavailable.
        """
        given = (options or ClientOptions()).completed(credentials, {} if auth else os.environ)
        address = ClusterAddress.parse(cluster)
        async with (
            open_metadata(address, given) as store,
            cls(
                store,
                TcpNetwork(),
                rng=random.SystemRandom(),
                now_ms=wall_ms,
                options=given,
                root=address.root,
                layout=address.layout,
                auth=auth,
                keys=load_keys(given.cluster_secret_file, os.environ),
            ) as client,
        ):
            client._cluster = cluster
            yield client

    @classmethod
    async def open(
        cls,
        cluster: str,
        *,
        options: ClientOptions | None = None,
        credentials: str | Path | Credentials | None = None,
        auth: AuthProvider | None = None,
    ) -> LedgerClient:
        """Opens what `connect` opens, with its arguments and errors: `close` it."""
        return await cls.connect(cluster, options=options, credentials=credentials, auth=auth)

    def _description(self) -> str:
        return f"of {self._cluster}"

    async def __aenter__(self) -> Self:
        self._nursery_manager = trio.open_nursery()
        self._nursery = await self._nursery_manager.__aenter__()
        self.pool.start(self._nursery)
        self.missed.start(self._nursery)
        self._send_loop.start(self._nursery)
        self._opener.start(self._nursery)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._nursery is not None
        assert self._nursery_manager is not None
        await self.missed.finish()
        self._send_loop.fail_all(LedgerClosed("the client was closed"))
        self.pool.close_all()
        self._nursery.cancel_scope.cancel()
        # The body's own exception propagates by itself, not in an exception group of the nursery.
        await self._nursery_manager.__aexit__(None, None, None)

    def create_ledger(
        self,
        *,
        ensemble_size: int = 3,
        write_quorum: int = 3,
        ack_quorum: int = 2,
        digest_type: DigestType = DigestType.CRC32C,
        password: bytes | None = b"",
        custom: Mapping[str, bytes] = MappingProxyType({}),
        deferred_sync: bool = False,
        prefer: Sequence[str] = (),
        placement: PlacementPolicy | None = None,
        saves_requests: bool = False,
    ) -> Opening[LedgerWriter]:
        """Creates a ledger and returns its only writer.

        Each entry is sent to `write_quorum` of the `ensemble_size` bookies, round-robin, and is
        confirmed when `ack_quorum` of them have fsynced it. `custom` is stored with the
        metadata. With `deferred_sync` an append returns when `ack_quorum` bookies have the
        entry, *fsynced or not*; only `writer.force()` and closing guarantee that they synced it.
        Bookies whose id matches a pattern of `prefer` ("rack1-*") are chosen first, others if those
        are too few; a later replacement may be any bookie. `placement` (default: copies on
        different hosts as far as there are enough) is stored with the ledger, and followed when
        bookies are replaced. With `saves_requests` they are chosen from a list of up to a minute
        ago, and two requests to the metadata store make the ledger. With `password` None it gets
        a key of its own, which readers take from the metadata or derive from the cluster's secret.
        Its bookies, which get it at once, refuse to mix its entries with those of another ledger of
        the same id. Raises NotEnoughBookies, InvalidArgument, MetadataUnavailable; with `password`
        None also Unauthorized (another secret, no right to write), LedgerExists (many taken ids).
        """

        async def create() -> LedgerWriter:
            from ledger.writing.writer import LedgerWriter  # a client that only reads needs none

            metadata = await self._creator.create(
                sizes=(ensemble_size, write_quorum, ack_quorum),
                digest_type=digest_type,
                password=password,
                custom=custom,
                prefer=prefer,
                placement=placement or DEFAULT_PLACEMENT,
                saves_requests=saves_requests,
            )
            return LedgerWriter(metadata, self._send_loop, is_sync_deferred=deferred_sync)

        return Opening(create)

    async def restores(self) -> int:
        """Returns how often the metadata is known to have been put back to an older state.

        It is bookies that notice this, before they register: asked after a ledger was made, what
        its bookies noticed is counted.
        """
        return len(await RestoreLog(self.store).read())

    async def reserve_ledger(self, **settings: Any) -> int:
        """Creates an empty ledger for another client to write, and returns its id.

        Arguments and errors are those of `create_ledger`. `write_reserved` writes it, once.
        """
        custom = {**settings.pop("custom", {}), RESERVED_TAG: b"1"}
        writer = await self.create_ledger(**settings, custom=custom)
        writer.abandon()
        return writer.ledger_id

    def write_reserved(self, ledger_id: int) -> Opening[LedgerWriter]:
        """Returns the only writer of a ledger that `reserve_ledger` made; a second caller gets
        none.

        Raises LedgerClosed if the ledger has or had a writer, NoSuchLedger.
        """

        async def claim() -> LedgerWriter:
            from ledger.writing.writer import LedgerWriter

            client_id = await self._creator.registration.register()

            def claimed(stored: LedgerMetadata) -> LedgerMetadata:
                if stored.state is not LedgerState.OPEN or RESERVED_TAG not in stored.custom:
                    raise LedgerClosed(
                        f"ledger {ledger_id} has or had a writer (state "
                        f"{stored.state.name.lower()}); a ledger has one for its whole life. "
                        "Cure: make a new one"
                    )
                rest = {name: v for name, v in stored.custom.items() if name != RESERVED_TAG}
                return replace(stored, custom={**rest, CLIENT_TAG: client_id.encode()})

            metadata = await self.ledgers.update(ledger_id, claimed)
            return LedgerWriter(metadata, self._send_loop)

        return Opening(claim)

    def open_ledger(
        self,
        ledger_id: int,
        *,
        password: bytes = b"",
        recover: bool = True,
        digest_type: DigestType | None = None,
    ) -> Opening[LedgerReader]:
        """Returns a reader of an existing ledger.

        With `recover` an open ledger is fenced (its writer can add nothing more), its end is
        found, and it is closed. Without, its writer is not affected, and only confirmed entries
        can be read. `digest_type` is used if the metadata names none, as for very old ledgers.
        Raises NoSuchLedger, Unauthorized (wrong password), RecoveryIncomplete.
        """

        async def open_it() -> LedgerReader:
            return await self._opener.open_ledger(
                ledger_id, password=password, recover=recover, digest_type=digest_type
            )

        return Opening(open_it)

    def reader_of(
        self, metadata: LedgerMetadata, *, password: bytes = b"", rotation: int | None = None
    ) -> LedgerReader:
        """Returns a reader for given metadata, for instance from another process, without any
        request. For a ledger that is open there, the reader may read what `note_confirmed` has
        reported. Metadata that is out of date is read again when replicas fail.

        `rotation` is the replica that is asked first, counted modulo their number; None: any.
        Raises Unauthorized, LedgerClosed if the client is not open.
        """
        return self._opener.reader_of(metadata, password=password, rotation=rotation)

    def check_copies(self, ledger_ids: Sequence[int]) -> None:
        """Has the bookies of these ledgers asked in the background which entries they hold; ledgers
        that lack copies are marked for auto-recovery. For ledgers that another client closed
        lately, and may not have lived to do that. Raises LedgerClosed if the client is not open.
        """
        self.start_background(self._opener.check_copies, tuple(ledger_ids))

    async def delete_ledger(self, ledger_id: int) -> None:
        """Deletes the metadata; bookies reclaim the space later. Raises NoSuchLedger."""
        await self.ledgers.delete(ledger_id)

    async def list_ledgers(self) -> list[int]:
        """Returns the ids of all ledgers, ascending."""
        return await self.ledgers.list()

    async def ledger_metadata(self, ledger_id: int) -> LedgerMetadata:
        """Returns the metadata of a ledger. Raises NoSuchLedger."""
        metadata, _ = await self.ledgers.read(ledger_id)
        return metadata

    @property
    def is_open(self) -> bool:
        """Whether the client can be used: from entering its block until leaving it."""
        return self._nursery is not None and not self._nursery.cancel_scope.cancel_called

    def start_background(self, function: Callable[..., Awaitable[object]], *args: object) -> None:
        """Starts a task that ends with this client at the latest. It must not raise.

        Raises LedgerClosed if the client is not open.
        """
        if self._nursery is None or not self.is_open:
            raise LedgerClosed("the client is not open")
        try:
            self._nursery.start_soon(function, *args)
        except RuntimeError as error:
            raise LedgerClosed("the client is closed") from error

    async def bookie_info(
        self, *, timeout_s: float | None = None
    ) -> dict[str, BookieSpace | LedgerError]:
        """Returns the disk space of every registered bookie, by id, or the error if it did not
        report it within `timeout_s` seconds (default: the read timeout).

        Raises MetadataUnavailable.
        """
        found = [*await self.bookies.available(), *await self.bookies.read_only()]
        return await ask_space(self.pool, found, timeout_s=timeout_s or self.options.read_timeout_s)


def _note_jump(jump_ms: int) -> None:
    _log.warning("%s", jump_text(jump_ms))


def wall_ms() -> int:
    """Returns the wall clock in milliseconds since 1970."""
    return time.time_ns() // 1_000_000
