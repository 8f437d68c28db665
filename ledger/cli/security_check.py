"""Looks at a running cluster as an outsider does, and finds what is open.

Every request is one that changes nothing. What cannot be found out is reported, too: it must never
pass for closed.
"""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Mapping
from typing import Any, NamedTuple

import trio

from ledger.cli.contexts import contexts_file
from ledger.cli.http_client import ask
from ledger.client import LedgerClient, wall_ms
from ledger.connection.encryption import ClientTls
from ledger.connection.single_frames import receive_frame, send_frame
from ledger.core.authentication.names import DIGEST_MD5, PLUGINS, SCRAM_SHA_256, SCRAM_SHA_512
from ledger.errors import (
    BookieUnavailable,
    InvalidArgument,
    LedgerError,
    NoSuchNode,
    Status,
    Unauthorized,
)
from ledger.metastore import open_store
from ledger.metastore.address import ClusterAddress
from ledger.metastore.bookies import BookieInfo
from ledger.metastore.node_kinds import NODE_KINDS
from ledger.metastore.zookeeper.access import OPEN_ACCESS
from ledger.options import ClientOptions
from ledger.runtime.network import TcpNetwork, Transport
from ledger.runtime.private_files import readable_by_others
from ledger.wire import v3
from ledger.wire.connection import ReceiveBuffer
from ledger.wire.messages import AuthRequest, ReadLacRequest, Request, RequestBody

_TIMEOUT_S = 10.0
_NO_LEDGER = (1 << 62) + 1
"""An id that no ledger has, so that an answer shows nothing of anybody."""
_CONFIG_PATH = "/api/v1/config/server_config"
_STATE_PATH = "/api/v1/bookie/state"


class Finding(NamedTuple):
    """Something that is open, or of which that could not be found out."""

    where: str
    what: str
    cure: str


async def find_open(uri: str, options: ClientOptions, *, expiry_days: int) -> list[Finding]:
    """Returns what is open in the cluster at `uri`.

    `options` say which certificates are trusted, and as which user bookies are asked for their
    settings. Raises NoSuchCluster, MetadataUnavailable, InvalidArgument.
    """
    async with LedgerClient.connect(uri, options=options) as client:
        bookies = await client.bookies.available() | await client.bookies.read_only()
    found = _open_files(options)
    found += await _open_metadata(uri, options)
    if not bookies:
        found.append(Finding("bookies", "none is up, so that none was tried", "start them"))
    for bookie, info in sorted(bookies.items()):
        found += await _open_port(bookie, info, options, expiry_days=expiry_days)
        found += await _open_http(bookie, info, options)
        found += await _open_settings(bookie, info, options)
    return found


def _open_files(options: ClientOptions) -> list[Finding]:
    files = (options.credentials_file, options.tls_key_file, str(contexts_file()))
    return [
        Finding(path, f"every user of this machine can read it (mode {mode})", f"chmod 600 {path}")
        for path in files
        if path and (mode := readable_by_others(path)) is not None
    ]


async def _open_metadata(uri: str, options: ClientOptions) -> list[Finding]:
    address = ClusterAddress.parse(uri)
    if address.sqlite_path is not None:
        mode = readable_by_others(address.sqlite_path)
        if mode is None:
            return []
        what = f"every user of this machine can read it (mode {mode})"
        return [Finding(address.sqlite_path, what, f"chmod 600 {address.sqlite_path}")]
    found = []
    if not options.metadata_tls:
        what = "connections to ZooKeeper are not encrypted"
        found.append(Finding("metadata", what, "metadata_tls, and ZooKeeper's secureClientPort"))
    try:
        with trio.fail_after(_TIMEOUT_S):
            readable = await _readable_nodes(address)
    except (LedgerError, OSError, trio.TooSlowError) as error:
        what = f"ZooKeeper could not be tried: {error or type(error).__name__}"
        return [*found, Finding("metadata", what, "try it again")]
    if readable:
        what = "everybody who reaches ZooKeeper can read, and most likely change: " + ", ".join(
            readable
        )
        found.append(Finding("metadata", what, "zookeeper_acl, and `security zookeeper-acl`"))
    return found


async def _readable_nodes(address: ClusterAddress) -> list[str]:
    """Returns the kinds of nodes that a session without credentials can read, by one of each, and
    only those that exist."""
    readable = []
    async with open_store(address, may_create=True, access=OPEN_ACCESS) as store:
        for kind in NODE_KINDS:
            try:
                await store.get(kind.sample.format(root=address.root))
            except (NoSuchNode, Unauthorized):
                continue
            readable.append(kind.name)
    return readable


# ---- the port of a bookie


async def _open_port(
    bookie: str, info: BookieInfo, options: ClientOptions, *, expiry_days: int
) -> list[Finding]:
    where = f"bookie {bookie}"
    try:
        with trio.fail_after(_TIMEOUT_S):
            return [
                Finding(where, what, cure)
                for what, cure in [
                    *await _in_clear(info),
                    *await _encrypted(bookie, info, options, expiry_days),
                ]
            ]
    except (LedgerError, OSError, trio.TooSlowError) as error:
        what = f"it could not be tried: {error or type(error).__name__}"
        return [Finding(where, what, "ask it again when it answers")]


async def _in_clear(info: BookieInfo) -> list[tuple[str, str]]:
    status = await _status(info, ReadLacRequest(_NO_LEDGER))
    if status not in (None, Status.UNAUTHORIZED):
        return [
            ("requests in clear are served to clients that prove nothing", "tls_required"),
        ]
    for mechanism in (SCRAM_SHA_256, SCRAM_SHA_512, DIGEST_MD5):
        first = f"n,,n=check,r={secrets.token_hex(18)}".encode()
        begun = AuthRequest(PLUGINS[mechanism], b"" if mechanism == DIGEST_MD5 else first)
        if await _status(info, begun) is Status.OK:
            return [("clients may authenticate and send requests in clear", "tls_required")]
    return []


async def _encrypted(
    bookie: str, info: BookieInfo, options: ClientOptions, expiry_days: int
) -> list[tuple[str, str]]:
    wanted = options.tls if options.tls != "off" else "start_tls"
    tls = ClientTls.of(dataclasses.replace(options, tls=wanted))
    assert tls is not None
    port = info.tls_port if wanted == "direct" and info.tls_port else info.port
    transport = await TcpNetwork().connect(info.host, port)
    try:
        try:
            encrypted = await tls.encrypt(transport, bookie, info.host)
        except BookieUnavailable as error:
            return [
                (f"no connection that can be trusted: {error}", "certificates of one authority")
            ]
        found = []
        certificate = encrypted.peer_certificate
        left_days = (certificate.expires_at_s - wall_ms() / 1000) / 86_400 if certificate else 0.0
        if left_days < expiry_days:
            found.append((f"its certificate expires in {left_days:.0f} days", "renew it"))
        answer = await _exchange(encrypted, ReadLacRequest(_NO_LEDGER))
        if answer not in (None, Status.UNAUTHORIZED):
            what = "requests are served to clients that prove nothing"
            found.append((what, "authentication_mechanisms, and permissions"))
        return found
    finally:
        transport.close()


async def _status(info: BookieInfo, body: RequestBody) -> Status | None:
    transport = await TcpNetwork().connect(info.host, info.port)
    try:
        return await _exchange(transport, body)
    finally:
        transport.close()


async def _exchange(transport: Transport, body: RequestBody) -> Status | None:
    """Returns the status that answers a request; None if the connection was closed instead."""
    try:
        await send_frame(transport, v3.encode_request(Request(3, 1, body)))
        frame = await receive_frame(transport, ReceiveBuffer())
    except OSError:
        return None
    return None if frame is None else v3.decode_response(frame).body.status


# ---- HTTP


async def _open_http(bookie: str, info: BookieInfo, options: ClientOptions) -> list[Finding]:
    if info.http is None:
        return []
    where = f"HTTP of bookie {bookie}"
    found = []
    if not info.is_http_encrypted:
        found.append(Finding(where, "it is not encrypted", "http_tls, or http_port = 0"))
    outsider = dataclasses.replace(options, credentials=None, credentials_file="")
    try:
        await ask(bookie, info, _STATE_PATH, options=outsider)
    except InvalidArgument:
        return found  # refused
    except BookieUnavailable as error:
        return [*found, Finding(where, f"it could not be tried: {error}", "ask it again")]
    what = "it answers clients that prove nothing"
    return [*found, Finding(where, what, "authentication_mechanisms, and permissions")]


async def _open_settings(bookie: str, info: BookieInfo, options: ClientOptions) -> list[Finding]:
    where = f"settings of bookie {bookie}"
    try:
        settings = await ask(bookie, info, _CONFIG_PATH, options=options)
    except (BookieUnavailable, InvalidArgument) as error:
        what = f"not known, permissions may be off: {error}"
        return [Finding(where, what, "credentials of a user with the role operate, and http_port")]
    return [Finding(where, what, cure) for what, cure in open_settings(settings)]


def open_settings(settings: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns what a bookie with these settings leaves open, each with the cure."""
    mechanisms = settings.get("authentication_mechanisms") or ()
    found = []
    if not mechanisms:
        found.append(("no client is authenticated", "authentication_mechanisms"))
    if DIGEST_MD5 in mechanisms:
        found.append(("DIGEST-MD5, which is weak, is a mechanism", "another mechanism"))
    if settings.get("secrets_in_clear_allowed"):
        found.append(("tokens and passwords may come in clear", "secrets_in_clear_allowed = false"))
    if settings.get("anonymous_allowed"):
        found.append(("anonymous clients are served", "anonymous_allowed = false"))
    if not settings.get("permissions"):
        found.append(("every client may do everything", "permissions = true"))
    if not settings.get("cluster_secret_file"):
        what = "passwords of new ledgers are in the metadata, so that a reader of it can write"
        found.append((what, "cluster_secret_file"))
    elif settings.get("permissions") and not settings.get("derived_keys_required"):
        what = "ledgers of clients without the key of a namespace are served as ledgers of it"
        found.append((what, "derived_keys_required, once no ledger is older than the secret"))
    if not settings.get("tls_required"):
        found.append(("it serves requests that are not encrypted", "tls_required = true"))
    if settings.get("tls_to_bookies", "off") == "off":
        found.append(("it copies entries of others in clear", "tls_to_bookies = start_tls"))
    return found
