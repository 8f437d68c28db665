"""The registry of bookies: which ones exist, where they listen, which of them accept entries.

Nodes and bytes are Apache BookKeeper's: `available/<id>` (ephemeral), `available/readonly/<id>`
(ephemeral), `cookies/<id>`, `INSTANCEID`, `LAYOUT`. Known bookies are those with a cookie.

A property of the registration names the bookie's software; Apache's bookies do not have it. It must
only be set by bookies that serve an entry after the last add confirmed once it is durable, and not
before: readers rely on that.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import trio
from google.protobuf.message import DecodeError

from ledger.core.placement.topology import Candidates, Location, Place, weights_of
from ledger.errors import (
    BookieUnavailable,
    InvalidArgument,
    MetadataCorrupt,
    NodeExists,
    NoSuchNode,
)
from ledger.metastore.base import ANY_VERSION, MetadataStore
from ledger.metastore.cookie import Cookie, decode_cookie, encode_cookie
from ledger.metastore.layout import Layout, decode_layout, encode_layout
from ledger.metastore.locations import BookieLocations, place_of, places_of_table
from ledger.metastore.paths import READ_ONLY_NODE, check_bookie_id
from ledger.metastore.registration import TAKEOVER_TIMEOUT_S, Registration
from ledger.proto.data_formats_pb2 import BookieServiceInfoFormat
from ledger.runtime.background import open_background

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BookieInfo:
    """Where a bookie listens.

    Attributes:
        properties: free text for tools.
        http: the address of its HTTP server, if it has one.
        starts_tls: whether it encrypts a connection on request.
        tls_port: its port for TLS from the first byte, if it has one.
        is_http_encrypted: whether its HTTP server speaks TLS.
    """

    host: str
    port: int
    properties: Mapping[str, str] = field(default_factory=dict, hash=False)
    http: tuple[str, int] | None = None
    starts_tls: bool = False
    tls_port: int | None = None
    is_http_encrypted: bool = False

    def __post_init__(self) -> None:
        addresses = [(self.host, self.port), (self.host, self.tls_port or self.port)]
        for host, port in (*addresses, *([self.http] if self.http else [])):
            if not host or not 0 < port < 65536:
                raise InvalidArgument(f"a bookie cannot listen on {host!r} port {port}")


def empty_start_path(bookie_id: str) -> str:
    """Returns the path of the record that a bookie used its permission to start empty."""
    return f"/ledgerstream/empty-starts/{bookie_id}"


class BookieRegistry:
    """The registry below `root`. Any number may share one store.

    What a bookie published is cached while it is listed, so that choosing bookies costs one
    request; `info` and `address` always ask the store.
    """

    def __init__(self, store: MetadataStore, root: str = "/ledgers") -> None:
        self._store = store
        self.root = root
        self._available = f"{root}/available"
        self._read_only = f"{root}/available/{READ_ONLY_NODE}"
        self._cookies = f"{root}/cookies"
        self.instance_id_path = f"{root}/INSTANCEID"
        self._listed: dict[str, dict[str, BookieInfo]] = {}
        self._seen: dict[str, BookieInfo] = {}
        self._seen_changes = 0
        """What each bookie published last, also of those that have left since."""
        self.locations = BookieLocations(store)
        self.free_bytes: Mapping[str, int] = {}
        """Free space by bookie, by which `candidates` are weighted; set by a client that asked."""
        self._made_from: tuple[object, ...] = ()
        self._candidates = Candidates({})
        self.candidates_s = -math.inf
        """When `candidates` asked last, by trio's clock."""

    # Registered bookies.

    async def available(self) -> dict[str, BookieInfo]:
        """Returns the bookies that accept new entries, sorted by id."""
        return await self._infos(self._available, await self._store.children(self._available))

    async def read_only(self) -> dict[str, BookieInfo]:
        """Returns the bookies that only serve reads, sorted by id."""
        return await self._infos(self._read_only, await self._store.children(self._read_only))

    async def candidates(self, *, age_s_max: float = 0.0) -> Candidates:
        """Returns the bookies that accept new entries, with their places, prepared for choosing:
        the same object until they change. It costs what `available` costs, and once a minute one
        request more; nothing if the last answer is not older than `age_s_max`."""
        if not trio.current_time() - self.candidates_s < age_s_max:
            infos = await self.available()
            self._prepared(infos, await self.locations.known())
            self.candidates_s = trio.current_time()
        return self._candidates

    def doubt_candidates(self) -> None:
        """Has the next call of `candidates` ask, because a bookie failed that it returned."""
        self.candidates_s = -math.inf

    async def topology(self) -> Candidates:
        """Returns `candidates`; the read-only bookies were asked for, too, so that their places are
        known."""
        await self.read_only()
        return await self.candidates()

    @property
    def known_topology(self) -> Candidates:
        """The places of bookies as far as they are known here, without any request."""
        return self._candidates

    def _prepared(self, infos: dict[str, BookieInfo], table: Mapping[str, Location]) -> Candidates:
        made_from = (infos, table, self.free_bytes, self._seen_changes)
        if self._made_from != made_from:
            seen = {b: place_of(b, i.host, i.properties, table) for b, i in self._seen.items()}
            places: dict[str, Place] = {bookie: seen[bookie] for bookie in infos}
            self._candidates = Candidates(
                places,
                others={**places_of_table(table), **seen},
                weights=weights_of(places, self.free_bytes),
            )
            self._made_from = made_from
        return self._candidates

    async def all(self) -> list[str]:
        """Returns every bookie of the cluster, up or down: those with a cookie or a
        registration."""
        known: dict[str, None] = {}
        for parent in (self._cookies, self._available, self._read_only):
            known.update(dict.fromkeys(await self._store.children(parent)))
        known.pop(READ_ONLY_NODE, None)
        return sorted(known)

    async def is_ours(self, bookie_id: str) -> bool | None:
        """Returns whether a bookie is registered as one of our software at this moment; None if it
        is not registered. Raises what `info` raises."""
        info = await self.info(bookie_id)
        if info is None:
            return None
        return info.properties.get(SOFTWARE_PROPERTY) == OUR_SOFTWARE

    async def info(self, bookie_id: str) -> BookieInfo | None:
        """Returns what a bookie has published; None if it is not registered. Raises
        MetadataCorrupt."""
        check_bookie_id(bookie_id)
        for parent in (self._available, self._read_only):
            try:
                return await self._info(parent, bookie_id)
            except NoSuchNode:
                continue
        return None

    async def address(self, bookie_id: str) -> tuple[str, int]:
        """Returns host and port of a bookie; if it is not registered, those in its id.

        Raises BookieUnavailable if neither contains them.
        """
        info = await self.info(bookie_id)
        if info is not None:
            return info.host, info.port
        info_of_id = _info_of_id(bookie_id)
        if info_of_id is None:
            raise BookieUnavailable(f"bookie {bookie_id} is not registered: its address is unknown")
        return info_of_id.host, info_of_id.port

    async def watch_available(self) -> AsyncGenerator[dict[str, BookieInfo], None]:
        """Yields `available()` now, and again after it changes. Close it with `aclosing`."""
        async with aclosing(self._store.watch_children(self._available)) as changes:
            async for names in changes:
                yield await self._infos(self._available, names)

    # Registering.

    @asynccontextmanager
    async def register(
        self,
        bookie_id: str,
        info: BookieInfo,
        read_only: bool = False,
        *,
        takeover_timeout_s: float = TAKEOVER_TIMEOUT_S,
    ) -> AsyncIterator[Registration]:
        """Registers the bookie for the block, and again whenever the session was lost.

        A registration left by this bookie's dead predecessor (same host and port) is taken over
        at once; for that of another bookie the call waits `takeover_timeout_s`, then raises
        MetadataConflict. The value is a `Registration`, which switches between read-only and not.
        """
        check_bookie_id(bookie_id)
        async with open_background() as nursery:
            registration = Registration(
                self._store,
                nursery,
                writable_path=f"{self._available}/{bookie_id}",
                read_only_path=f"{self._read_only}/{bookie_id}",
                data=encode_info(info),
                is_same_bookie=lambda data: _is_at(bookie_id, data, info),
                takeover_timeout_s=takeover_timeout_s,
            )
            await registration.begin(read_only)
            try:
                yield registration
            finally:
                await registration.end()

    # Cookies.

    async def read_cookie(self, bookie_id: str) -> tuple[Cookie, int] | None:
        """Returns the cookie and its version, None if there is none. Raises MetadataCorrupt."""
        try:
            node = await self._store.get(self.cookie_path(bookie_id))
        except NoSuchNode:
            return None
        return decode_cookie(node.data), node.version

    async def write_cookie(
        self, bookie_id: str, cookie: Cookie, version: int | None = None
    ) -> None:
        """Creates the cookie (raises NodeExists), or replaces the one of `version` (raises
        MetadataConflict, NoSuchNode)."""
        path = self.cookie_path(bookie_id)
        if version is None:
            await self._store.create(path, encode_cookie(cookie))
        else:
            await self._store.put(path, encode_cookie(cookie), version)

    async def delete_cookie(self, bookie_id: str, version: int = ANY_VERSION) -> None:
        """Removes the bookie from the cluster. Raises NoSuchNode, MetadataConflict."""
        await self._store.delete(self.cookie_path(bookie_id), version)

    # Starts with empty directories.

    async def is_empty_start_used(self, bookie_id: str, instance_id: str) -> bool:
        """Whether the bookie used its permission to start empty in the cluster `instance_id`."""
        try:
            node = await self._store.get(empty_start_path(bookie_id))
        except NoSuchNode:
            return False
        return node.data == instance_id.encode()

    async def record_empty_start(self, bookie_id: str, instance_id: str) -> None:
        """Uses the permission up. Raises MetadataUnavailable."""
        path, data = empty_start_path(bookie_id), instance_id.encode()
        try:
            await self._store.create(path, data)
        except NodeExists:
            await self._store.put(path, data)

    async def permit_empty_start(self, bookie_id: str) -> None:
        """Gives the permission back. Raises MetadataUnavailable."""
        try:
            await self._store.delete(empty_start_path(bookie_id))
        except NoSuchNode:
            pass

    # The cluster.

    async def init_cluster(self, rng: random.Random, layout: Layout | None = None) -> str:
        """Creates the nodes of a cluster that are missing; returns the instance id.

        It may be called any number of times, and by several processes at once; a cluster made by
        Apache's `initnewcluster` is complete. `layout` is the one that the address asks for; None
        accepts any, and otherwise creates the default. Raises InvalidArgument if the cluster has
        another layout, MetadataCorrupt if it has an unknown one; then nothing was written.
        """
        wanted = encode_layout(layout or Layout.HIERARCHICAL)
        # First of all: a process that loses the race for it must not have changed anything.
        found = decode_layout(await self._create_if_missing(f"{self.root}/LAYOUT", wanted))
        if layout not in (None, found):
            assert layout is not None
            raise InvalidArgument(
                f"the cluster at {self.root} has the layout {found.value}, and its address asks "
                f"for {layout.value}. Cure: zk:// or zk+null:// accepts any layout"
            )
        await self._create_if_missing(self._read_only, b"")
        fresh = _random_uuid(rng).encode()
        stored = await self._create_if_missing(self.instance_id_path, fresh)
        return stored.decode()

    async def instance_id(self) -> str:
        """Returns the instance id. Raises NoSuchNode if the cluster was never initialized."""
        try:
            return (await self._store.get(self.instance_id_path)).data.decode()
        except NoSuchNode:
            raise NoSuchNode(
                f"there is no cluster at {self.root}: its first bookie creates it when it starts"
            ) from None

    async def _create_if_missing(self, path: str, data: bytes) -> bytes:
        try:
            await self._store.create(path, data)
        except NodeExists:
            return (await self._store.get(path)).data
        return data

    async def _infos(self, parent: str, names: Iterable[str]) -> dict[str, BookieInfo]:
        before, found = self._listed.get(parent, {}), dict[str, BookieInfo]()
        for name in names:
            if name == READ_ONLY_NODE:
                continue
            try:
                info = before.get(name)
                if info is None:
                    info = self._seen[name] = await self._info(parent, name)
                    self._seen_changes += 1
                found[name] = info
            except NoSuchNode:
                continue  # it left after the listing
            except MetadataCorrupt as error:
                # One broken registration must not hide the other bookies.
                log.warning("bookie_ignored bookie=%s error=%r", name, str(error))
        self._listed[parent] = found
        return dict(found)

    async def _info(self, parent: str, name: str) -> BookieInfo:
        return decode_info(name, (await self._store.get(f"{parent}/{name}")).data)

    def cookie_path(self, bookie_id: str) -> str:
        """Returns the path of a bookie's cookie. Raises InvalidArgument."""
        return f"{self._cookies}/{check_bookie_id(bookie_id)}"


_RPC, _RPC_TLS = "bookie-rpc", "bookie-rpc-tls"
"""Protocols of endpoints: Apache's, and ours for TLS from the first byte, which others ignore."""
_TLS_EXTENSION = "tls"
"""Apache's extension of an endpoint that knows START_TLS."""


def encode_info(info: BookieInfo) -> bytes:
    """Returns a BookieServiceInfoFormat with the endpoints for clients and that for tools, which
    has Apache's name for it."""
    message = BookieServiceInfoFormat(properties=dict(info.properties))
    extensions = [_TLS_EXTENSION] if info.starts_tls else []
    message.endpoints.add(
        id="bookie", protocol=_RPC, host=info.host, port=info.port, extensions=extensions
    )
    if info.tls_port is not None:
        message.endpoints.add(
            id="bookie-tls", protocol=_RPC_TLS, host=info.host, port=info.tls_port
        )
    if info.http is not None:
        host, port = info.http
        protocol = "https" if info.is_http_encrypted else "http"
        message.endpoints.add(id="httpserver", protocol=protocol, host=host, port=port)
    encoded: bytes = message.SerializeToString(deterministic=True)
    return encoded


def decode_info(bookie_id: str, data: bytes) -> BookieInfo:
    """Returns the published data; an old bookie has none, and its id is its address. Raises
    MetadataCorrupt."""
    if not data:
        info = _info_of_id(bookie_id)
        if info is None:
            raise MetadataCorrupt(f"bookie {bookie_id} is registered without an address")
        return info
    try:
        message = BookieServiceInfoFormat.FromString(data)
    except DecodeError as error:
        raise MetadataCorrupt(f"registration of bookie {bookie_id}: {error}") from error
    # By protocol, as Apache does: in old registrations the endpoint id is that of the bookie.
    endpoints = {one.protocol: one for one in reversed(message.endpoints)}
    rpc = endpoints.get(_RPC)
    if rpc is None:
        raise MetadataCorrupt(f"registration of bookie {bookie_id} has no bookie-rpc endpoint")
    encrypted = endpoints.get(_RPC_TLS)
    http = endpoints.get("https", endpoints.get("http"))
    has_http = http is not None and bool(http.host) and 0 < http.port < 65536  # only for tools
    try:
        return BookieInfo(
            rpc.host,
            rpc.port,
            dict(message.properties),
            (http.host, http.port) if http is not None and has_http else None,
            starts_tls=_TLS_EXTENSION in rpc.extensions,
            # One without a port of its own is as useless as none, and no reason to ignore a bookie.
            tls_port=encrypted.port if encrypted and 0 < encrypted.port < 65536 else None,
            is_http_encrypted=has_http and "https" in endpoints,
        )
    except InvalidArgument as error:
        raise MetadataCorrupt(f"registration of bookie {bookie_id}: {error}") from error


def _info_of_id(bookie_id: str) -> BookieInfo | None:
    host, colon, port = bookie_id.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit():
        return None
    number = int(port)
    return BookieInfo(host, number) if 0 < number < 65536 else None


def _is_at(bookie_id: str, data: bytes, info: BookieInfo) -> bool:
    try:
        found = decode_info(bookie_id, data)
    except MetadataCorrupt:
        return False
    return (found.host, found.port) == (info.host, info.port)


def _random_uuid(rng: random.Random) -> str:
    bits = rng.getrandbits(128) & ~(0xF << 76) & ~(0x3 << 62) | (4 << 76) | (2 << 62)
    text = f"{bits:032x}"
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


SOFTWARE_PROPERTY: Final = "software"
OUR_SOFTWARE: Final = "ledgerstream"
