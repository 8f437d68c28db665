"""`security`: what encryption, authentication, permissions and the audit log cost.

A cluster for each variant, all at the same time: `clear` and `again` have nothing of it, `tls`
encrypts, `permitted` authenticates and permits, `secure` does all of it and writes an audit log.
Entries to a ledger and lists of records to a stream take turns over the variants, round by round,
so that all of them meet the same load of the machine; the CPU time of client and bookies counts.
How much `again` differs from `clear` shows what the machine lets one distinguish. Then come
connections, one after the other, and a time in which nothing happens. Connections to a port of its
own for TLS are not measured: they differ from START_TLS by one request.
"""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import tomli_w
import trio

from benchmarks.append import append_many
from benchmarks.cluster import (
    Phase,
    RunningCluster,
    start_cluster,
    stop_cluster,
    temporary_directory,
)
from benchmarks.ledger_add import add_entries
from benchmarks.report import Measured
from benchmarks.settings import Settings
from bookie.standalone.cluster import HOST, StandaloneLayout
from ledger.client import LedgerClient
from ledger.connection.authentication import auth_source
from ledger.connection.connection import BookieConnection
from ledger.connection.encryption import ClientTls
from ledger.core.authentication import scram
from ledger.core.permissions import Grant, Role
from ledger.errors import BookieUnavailable
from ledger.metastore import open_store
from ledger.metastore.permissions import Permissions
from ledger.metastore.users import UserStore, new_user
from ledger.options import ClientOptions
from ledger.runtime.network import TcpNetwork
from ledger.security_setup import SecurityDirectory, make_security_directory_at_once
from stream import Namespace

NAMESPACE, STREAM, USER, PASSWORD = "bench", "records", "bench", "benchmark"
AIMS: Final = {
    (100, "tls"): 1.6,
    (1024, "tls"): 2.0,
    (100, "permitted"): 1.02,
    (1024, "permitted"): 1.02,
}
"""CPU per record at most, as a multiple of that in clear, by size and variant."""
_ROUNDS: Final = 7
_CONNECTIONS: Final = 200
_IDLE_S: Final = 20.0
_CONNECT_TIMEOUT_S: Final = 10.0
_KINDS: Final = ("ledger_add", "append")
_ROUND_BYTES: Final = 80_000_000
"""Bytes that a bookie gets in a round: it flushes its write cache twice, of which each half is of
32 MiB, whatever is in it before."""
_OVERHEAD_BYTES: Final = {"ledger_add": 64, "append": 0}


@dataclass(slots=True)
class _Variant:
    """One cluster, and what was measured on it."""

    name: str
    is_encrypted: bool = False
    is_permitted: bool = False
    is_audited: bool = False
    cpu_us: dict[str, list[float]] = field(default_factory=dict)
    """CPU time of all processes per record, by kind, of each round."""
    phase: Phase = field(default_factory=Phase)
    """The sum of the phases in which records were sent."""
    bodies: dict[str, Callable[[int], Awaitable[object]]] = field(default_factory=dict)
    cluster: RunningCluster | None = None

    @property
    def running(self) -> RunningCluster:
        assert self.cluster is not None
        return self.cluster

    def options(self, settings: Settings) -> ClientOptions:
        """Returns those of a client of this cluster."""
        security = SecurityDirectory(self.running.directory / "security")
        return ClientOptions(
            window_entries=settings.window,
            tls="start_tls" if self.is_encrypted else "off",
            tls_ca_file=str(security.authority_file) if self.is_encrypted else "",
            credentials_file=str(security.credentials_file(USER)) if self.is_permitted else "",
            cluster_secret_file=str(security.secret_file) if self.is_permitted else "",
        )

    def bookie_settings(self, security: SecurityDirectory, bookie: Path) -> dict[str, object]:
        """Returns what the settings of a bookie have beside those of an ordinary cluster."""
        chosen: dict[str, object] = {}
        for name, value in security.bookie_settings("bookie").items():
            is_of_tls = "tls" in name
            if self.is_encrypted if is_of_tls else self.is_permitted:
                chosen[name] = value
        if self.is_audited:
            chosen["audit_file"] = str(bookie / "audit.log")
        return chosen

    def start(self, directory: Path, bookies: int) -> None:
        """Starts the cluster, with its users."""
        layout = StandaloneLayout.open(directory, bookies)
        security, rng = layout.security, random.SystemRandom()
        now_ms = time.time_ns() // 1_000_000
        hosts = {"bookie": (HOST, "localhost")}
        make_security_directory_at_once(security, hosts, rng=rng, now_ms=now_ms)
        credentials = security.credentials_file(USER)
        credentials.touch(0o600)
        credentials.write_text(f'user = "{USER}"\npassword = "{PASSWORD}"\n')
        for number in range(1, bookies + 1):
            path = layout.bookie_config(number)
            more = self.bookie_settings(security, layout.bookie_directory(number))
            path.write_text(path.read_text() + tomli_w.dumps(more))
        self.cluster = start_cluster(directory, bookies)
        trio.run(_create_user, layout.metadata, now_ms)

    @contextmanager
    def measured(self, kind: str, count: int) -> Iterator[None]:
        with self.running.measured() as phase:
            yield
        cpu_s = phase.bookies_cpu_s
        if kind != "idle":  # in which the process of the clients is idle for all variants
            cpu_s += phase.client_cpu_s
        self.cpu_us.setdefault(kind, []).append(cpu_s * 1e6 / count)
        if kind not in _KINDS:
            return
        self.phase.wall_s += phase.wall_s
        self.phase.client_cpu_s += phase.client_cpu_s
        self.phase.bookies_cpu_s += phase.bookies_cpu_s


def _count(kind: str, settings: Settings) -> int:
    """Returns the number of records in a round."""
    return settings.count or _ROUND_BYTES // (settings.size + _OVERHEAD_BYTES[kind])


async def _create_user(uri: str, now_ms: int) -> None:
    """Creates a user with the rights that the benchmark needs, and no other."""
    salts = {each: random.randbytes(scram.SALT_BYTES) for each in scram.HASHES}
    async with open_store(uri) as store:
        grants = [Grant(USER, Role.WRITE, NAMESPACE), Grant(USER, Role.LEDGER)]
        await Permissions(store).grant(grants)
        user = new_user(USER, PASSWORD, salts=salts, now_ms=now_ms, digest_md5=False)
        await UserStore(store).create(user)


@asynccontextmanager
async def _writers(variant: _Variant, settings: Settings) -> AsyncIterator[None]:
    """Opens a ledger and a stream of the variant."""
    options, uri = variant.options(settings), variant.running.uri
    payload = os.urandom(settings.size)
    async with (
        LedgerClient.connect(uri, options=options) as client,
        client.create_ledger(**settings.replication) as ledger,
        Namespace.connect(uri, NAMESPACE, options=options) as namespace,
    ):
        await namespace.ensure(**settings.replication)
        async with namespace.writer(STREAM, create=True) as writer:
            variant.bodies = {
                "ledger_add": lambda count: add_entries(ledger, payload, count),
                "append": lambda count: append_many(writer, payload, count),
            }
            yield


async def _connect(variant: _Variant, settings: Settings) -> None:
    """Opens connections to one bookie, one after the other."""
    options, network = variant.options(settings), TcpNetwork()
    tls, auth = ClientTls.of(options), auth_source(None, options, random.SystemRandom())
    layout = StandaloneLayout.open(variant.running.directory, None)

    async def resolve(_: str) -> tuple[str, int]:
        return HOST, layout.ports[0]

    async with trio.open_nursery() as nursery:

        async def connect() -> None:
            bookie = f"{HOST}:{layout.ports[0]}"
            connection = BookieConnection(bookie, 3, outbox_bytes_max=1 << 20, tls=tls, auth=auth)
            nursery.start_soon(connection.run, network, resolve, _CONNECT_TIMEOUT_S)
            await connection.wait_connected()
            connection.close(BookieUnavailable("measured"))

        await connect()  # hashes the password, which a client does once
        with variant.measured("connection", _CONNECTIONS):
            for _ in range(_CONNECTIONS):
                await connect()


async def _measure(variants: list[_Variant], settings: Settings) -> None:
    async with AsyncExitStack() as stack:
        for variant in variants:
            await stack.enter_async_context(_writers(variant, settings))
            await variant.bodies["append"](settings.warmup_count(_OVERHEAD_BYTES["append"]))
        for number in range(_ROUNDS + 1):
            at = number % len(variants)  # each begins some rounds
            for kind in _KINDS:
                count = _count(kind, settings)
                for variant in variants[at:] + variants[:at]:
                    await variant.running.wait_idle()
                    if number == 0:  # a warm-up
                        await variant.bodies[kind](count)
                        continue
                    with variant.measured(kind, count):
                        await variant.bodies[kind](count)
    for variant in variants:
        await _connect(variant, settings)
    for variant in variants:
        await variant.running.wait_idle()
    with ExitStack() as idle:
        for variant in variants:
            idle.enter_context(variant.measured("idle", int(_IDLE_S)))
        await trio.sleep(_IDLE_S)


def _result(variants: list[_Variant], size: int) -> dict[str, Any]:
    """Returns medians of all rounds, their ratios to those in clear, and which aims are met."""
    clear, again, *others = variants
    found: dict[str, Any] = {}
    for kind in _KINDS:
        pairs = list(zip(clear.cpu_us[kind], again.cpu_us[kind], strict=True))
        base = [sum(pair) / 2 for pair in pairs]
        noise = statistics.median(abs(one - other) / (one + other) for one, other in pairs)
        found[f"{kind}_clear_cpu_us"] = round(statistics.median(base), 3)
        found[f"{kind}_noise"] = round(noise, 3)
        for variant in others:
            name, mine = f"{kind}_{variant.name}", variant.cpu_us[kind]
            ratios = sorted(one / other for one, other in zip(mine, base, strict=True))
            ratio = statistics.median(ratios)
            found[f"{name}_cpu_us"] = round(statistics.median(mine), 3)
            found[f"{name}_ratio"] = round(ratio, 3)
            found[f"{name}_ratios"] = f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
            if (size, variant.name) in AIMS:
                found[f"{name}_aim"] = _verdict(ratio, AIMS[size, variant.name], noise)
    for variant in variants:
        found[f"connection_{variant.name}_cpu_us"] = round(variant.cpu_us["connection"][0])
        found[f"idle_{variant.name}_cpu_us_per_s"] = round(variant.cpu_us["idle"][0])
    return found


def _verdict(ratio: float, aim: float, noise: float) -> str:
    if ratio <= aim:
        return f"{aim}: met"
    return f"{aim}: {'not distinguishable' if ratio <= aim + noise else 'missed'}"


def security(settings: Settings) -> Measured:
    """Measures all variants at once, each on a cluster of `--bookies` bookies."""
    variants = [
        _Variant("clear"),
        _Variant("again"),
        _Variant("tls", is_encrypted=True),
        _Variant("permitted", is_permitted=True),
        _Variant("secure", is_encrypted=True, is_permitted=True, is_audited=True),
    ]
    with temporary_directory(settings.dir) as directory:
        try:
            for variant in variants:
                variant.start(directory / variant.name, settings.bookies)
            trio.run(_measure, variants, settings)
        finally:
            for variant in variants:
                if variant.cluster is not None:
                    stop_cluster(variant.cluster)
    count = _ROUNDS * sum(_count(kind, settings) for kind in _KINDS)
    secure = variants[-1].phase
    return Measured(count, count * settings.size, secure, None, _result(variants, settings.size))
