"""Users of simulated bookies: passwords are changed, users deleted, tokens expire, bookies are
killed, the metadata is out of reach; and what must hold of every answer and audit line.

- Nobody is served by what was gone for longer than GONE_S, at a bookie that reached the metadata in
  that time.
- What was acknowledged to a writer can be read in the end.
- Each success and each refusal that a client saw is in the audit log of that bookie, or counted
  there as left out; and no secret is in an audit log or a log.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import random
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import trio

from bookie.config import BookieConfig
from bookie.server.audit import AuditLog
from bookie.server.authentication import VerifiedToken
from bookie.testing import SimCluster, Simulation, run_simulated, small_config
from ledger.connection.connection import BookieConnection
from ledger.connection.mechanisms import CredentialsProvider
from ledger.core.authentication.names import SCRAM_SHA_256, TOKEN
from ledger.core.authentication.scram import verifier_of
from ledger.credentials import Credentials, Secret
from ledger.errors import BookieUnavailable, LedgerError, OperationTimeout, Status, Unauthorized
from ledger.metastore.users import User, UserStore
from ledger.options import ClientOptions
from tests.bookie.server.test_server import add
from tests.sim.model import Violation

RUN_S = 40.0
GONE_S = 8.0
"""Longest time that something counts after its end, or after the metadata can be reached again: the
watch is begun again, and what was received before is answered."""
PROBED = ("ann", "bob")
"""Users whose passwords are changed and who are deleted, beside those of writers."""
WRITERS = ("writer-a", "writer-b")
_SECRET = "hush"
"""Part of all passwords and tokens, and of nothing else."""


@dataclass
class Validity:
    """A password or a token: when it was valid."""

    since_s: float
    until_s: float = float("inf")


@dataclass
class SimTokens:
    """Believes tokens that say when they expire, in virtual time."""

    wall_s: float = 0.0

    def verify(self, token: str) -> VerifiedToken:
        until_s = float(token.split("-")[1])
        if until_s <= trio.current_time():
            raise Unauthorized("the token has expired")
        return VerifiedToken("job", self.wall_s + until_s)


class _Lines(logging.Handler):
    """Keeps the log of all bookies."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


@dataclass
class Identities:
    """One run."""

    cluster: SimCluster
    chance: random.Random
    directory: Path
    log: _Lines = field(default_factory=_Lines)
    reachable_since: dict[str, float] = field(default_factory=dict)
    """Since when each bookie has reached the metadata; infinite while it does not."""
    passwords: dict[str, Validity] = field(default_factory=dict)
    """By the password, which names its user."""
    of_user: dict[str, str] = field(default_factory=dict)
    """The present password."""
    audits: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    succeeded: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By bookie and node of the client."""
    refused: Counter[tuple[str, str]] = field(default_factory=Counter)
    seen: Counter[str] = field(default_factory=Counter)
    acknowledged: dict[int, int] = field(default_factory=dict)
    """By ledger, how many entries."""
    drawn: int = 0

    # ---- the operator

    def draw(self, user: str) -> str:
        self.drawn += 1
        return f"{user}-{_SECRET}{self.drawn}"

    def user(self, name: str, password: str) -> User:
        salt = self.chance.randbytes(16)
        verifiers = {SCRAM_SHA_256: verifier_of(SCRAM_SHA_256, password, salt, 4096)}
        return User(name=name, created_ms=1, changed_ms=1, verifiers=verifiers)

    async def give(self, store: UserStore, name: str, *, is_new: bool) -> None:
        """Gives a user another password, of which its clients hear at about the same time."""
        password = self.draw(name)
        self.passwords[password] = Validity(trio.current_time())
        user = self.user(name, password)
        await (store.create(user) if is_new else store.change(user))
        self._gone(name)
        self.of_user[name] = password
        await trio.sleep(self.chance.uniform(0, 3))
        self.write(name, password)

    def write(self, name: str, password: str) -> None:
        file = self.directory / name
        file.write_text(f'user = "{name}"\npassword = "{password}"')
        file.chmod(0o600)

    def _gone(self, name: str) -> None:
        if (before := self.of_user.pop(name, None)) is not None:
            self.passwords[before].until_s = trio.current_time()

    async def operate(self) -> None:
        store = UserStore(self.cluster.metadata.connect("operator"))
        while True:
            await trio.sleep(self.chance.uniform(1.0, 6.0))
            name = self.chance.choice((*PROBED, *WRITERS))
            if name not in self.of_user:
                await self.give(store, name, is_new=True)
            elif name in PROBED and self.chance.random() < 0.5:
                await store.delete(name)
                self._gone(name)
            else:
                await self.give(store, name, is_new=False)

    async def disturb(self) -> None:
        """Kills bookies, or cuts them off from the metadata, one at a time."""
        while True:
            await trio.sleep(self.chance.uniform(2.0, 12.0))
            bookie = self.chance.choice(self.cluster.bookies)
            if self.chance.random() < 0.5:
                await self.cluster.kill_bookie(bookie)
                await trio.sleep(self.chance.uniform(0.0, 2.0))
                await self.cluster.start_bookie(bookie)
                self.reachable_since[bookie] = trio.current_time()
            else:
                self.reachable_since[bookie] = float("inf")
                self.cluster.metadata.cut_off(bookie)
                await trio.sleep(self.chance.uniform(1.0, 15.0))
                self.cluster.metadata.heal()
                self.reachable_since[bookie] = trio.current_time()

    # ---- clients

    def check(self, bookie: str, what: str, validity: Validity) -> None:
        """Raises Violation if a bookie must not have served by this any more."""
        now = trio.current_time()
        if what == TOKEN:
            is_gone = now > validity.until_s + GONE_S
        else:
            known_at = max(validity.until_s, self.reachable_since[bookie])
            is_gone = now > known_at + GONE_S
        if is_gone:
            raise Violation(f"{bookie} served by {what}, which ended at {validity.until_s} s")
        self.seen["served"] += 1

    async def probe(self, number: int) -> None:
        """Uses one password or token for as long as it is served, and a while longer."""
        while True:
            await trio.sleep(self.chance.uniform(0.0, 2.0))
            credentials, validity = self._drawn_credentials()
            if credentials is None:
                continue
            bookie = self.chance.choice(self.cluster.bookies)
            until_s = trio.current_time() + self.chance.uniform(5.0, 40.0)
            while trio.current_time() < until_s:
                await self._use(f"probe-{number}", bookie, credentials, validity)
                await trio.sleep(self.chance.uniform(0.1, 4.0))

    def _drawn_credentials(self) -> tuple[Credentials | None, Validity]:
        kind = self.chance.random()
        if kind < 0.3:
            since_s = trio.current_time()
            until_s = since_s + self.chance.uniform(2.0, 20.0)
            token = Secret(f"{_SECRET}-{until_s:.3f}")
            return Credentials(token=token), Validity(since_s, until_s)
        name = self.chance.choice(PROBED)
        if kind < 0.4:
            wrong = Secret(self.draw(name))
            return Credentials(user=name, password=wrong), Validity(0.0, float("-inf"))
        password = self.of_user.get(name)
        if password is None:
            return None, Validity(0.0)
        return Credentials(user=name, password=Secret(password)), self.passwords[password]

    async def _use(self, node: str, bookie: str, who: Credentials, validity: Validity) -> None:
        """Sends requests over one connection until it ends."""

        async def resolve(_: str) -> tuple[str, int]:
            return bookie, 3181

        provider = CredentialsProvider(who, self.chance)
        connection = BookieConnection(bookie, 3, outbox_bytes_max=1 << 20, auth=lambda: provider)
        async with trio.open_nursery() as nursery:
            network = self.cluster.network.of(node)
            nursery.start_soon(connection.run, network, resolve, 30.0)
            try:
                await connection.wait_connected()
                self.succeeded[bookie, node] += 1
                while True:
                    answer = await connection.call(add(9999, 0), 10.0)
                    if answer.status is Status.OK:
                        self.check(bookie, who.in_use, validity)
                    await trio.sleep(self.chance.uniform(0.0, 0.5))
            except Unauthorized:
                self.refused[bookie, node] += 1
            except (BookieUnavailable, OperationTimeout):
                pass
            nursery.cancel_scope.cancel()

    async def append(self, name: str) -> None:
        """Appends with the credentials in a file, to one ledger after the other."""
        options = ClientOptions(credentials_file=str(self.directory / name))
        async with self.cluster.client(name, options) as client:
            while True:
                try:
                    writer = await client.create_ledger()
                    for _ in range(self.chance.randint(10, 100)):
                        entry = await writer.append(b"%d" % writer.ledger_id)
                        self.acknowledged[writer.ledger_id] = entry + 1
                        await trio.sleep(0.2)
                    await writer.close()
                except LedgerError:
                    self.seen["a writer failed"] += 1
                    await trio.sleep(1.0)

    # ---- the end

    async def check_records(self) -> None:
        """Checks that each acknowledged entry can be read."""
        store = UserStore(self.cluster.metadata.connect("operator"))
        await self.give(store, "reader", is_new=True)
        options = ClientOptions(credentials_file=str(self.directory / "reader"))
        async with self.cluster.client("reader", options) as client:
            for ledger_id, count in self.acknowledged.items():
                async with client.open_ledger(ledger_id) as reader:
                    found = await reader.read(0, count - 1) if count else []
                if [bytes(one.payload) for one in found] != [b"%d" % ledger_id] * count:
                    raise Violation(f"ledger {ledger_id} lost some of {count} entries")

    def check_lines(self) -> None:
        """Checks the audit logs, and that no secret is anywhere."""
        ok: Counter[tuple[str, str]] = Counter()
        refused: Counter[tuple[str, str]] = Counter()
        for bookie, lines in self.audits.items():
            for line in lines:
                node = str(line.get("peer", "")).partition(":")[0]
                if line["action"] == "authenticate" and line["outcome"] == "ok":
                    ok[bookie, node] += 1
                elif line["action"] == "authenticate" and line["outcome"] == "refused":
                    refused[bookie, node] += 1
                elif line["action"] == "audit":
                    refused[bookie, node] += line.get("refusals", 0)
        for what, saw, has in (("success", self.succeeded, ok), ("refusal", self.refused, refused)):
            for key, count in saw.items():
                if has[key] < count:
                    raise Violation(f"of {count} of {key} the audit log has {has[key]}: {what}")
        written = [*self.log.texts, *(json.dumps(one) for one in self.audits.values())]
        if any(_SECRET in text for text in written):
            raise Violation("a secret was written")


def guarding(name: str, chance: random.Random) -> BookieConfig:
    """Returns the settings of a bookie that authenticates its clients."""
    return dataclasses.replace(
        small_config(name, chance),
        authentication_mechanisms=(SCRAM_SHA_256, TOKEN),
        token_keys_file="x",
        token_audience="x",
        secrets_in_clear_allowed=True,
    )


def run_identities(seed: int) -> Identities:
    """Runs users for a while. Raises Violation."""
    tokens = SimTokens()

    async def scenario(simulation: Simulation) -> Identities:
        tokens.wall_s = simulation.now_ms(0) / 1000
        chance = simulation.chance("identities")
        cluster = SimCluster(simulation, bookies=4, config=guarding)
        run = Identities(cluster, chance, Path(directory))
        logging.getLogger("bookie").addHandler(run.log)
        stack.callback(logging.getLogger("bookie").removeHandler, run.log)

        def open_audit(bookie: str) -> AuditLog:
            async def write(lines: Sequence[bytes]) -> int:
                await trio.lowlevel.checkpoint()
                run.audits.setdefault(bookie, []).extend(map(json.loads, lines))
                return len(lines)

            return AuditLog(write, now_ms=lambda: simulation.now_ms(0))

        cluster.open_audit = open_audit
        async with cluster:
            run.reachable_since = dict.fromkeys(cluster.bookies, trio.current_time())
            store = UserStore(cluster.metadata.connect("operator"))
            for name in (*PROBED, *WRITERS):
                await run.give(store, name, is_new=True)
            with trio.move_on_after(RUN_S):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(run.operate)
                    nursery.start_soon(run.disturb)
                    for name in WRITERS:
                        nursery.start_soon(run.append, name)
                    for number in range(6):
                        nursery.start_soon(run.probe, number)
            cluster.metadata.heal()
            await cluster.start_all()
            await trio.sleep(30.0)
            await run.check_records()
        run.check_lines()
        return run

    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        stack.enter_context(mock.patch("bookie.bookie.tokens_of", return_value=tokens))
        stack.enter_context(mock.patch("bookie.testing.cluster.CLOCK_SKEW_MS_MAX", 0))
        try:
            return run_simulated(scenario, seed)
        except* LedgerError as errors:
            raise errors.exceptions[0] from errors
