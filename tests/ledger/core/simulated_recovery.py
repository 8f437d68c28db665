"""A writer, bookies, a metadata node and several recoverers, stepped in random order.

It uses plain data and no clock: each step delivers one request or one response. The faults are
lost requests and responses, and bookies that are down, answer with errors or hang permanently.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from ledger.core.entry import Digest, DigestType
from ledger.core.metadata import Fragment, LedgerMetadata, LedgerState
from ledger.core.quorum import write_set
from ledger.core.recovery import RecoveryCore
from ledger.core.recovery_events import (
    Action,
    AddEntry,
    Answered,
    BookieChosen,
    Event,
    LedgerConflicted,
    LedgerStored,
    NoAnswer,
    ReadEntry,
    ReadLast,
    ReplaceBookie,
    StoreClosed,
)
from ledger.errors import LedgerError, Status

LEDGER = 7
DIGEST = Digest(DigestType.CRC32C, b"")


@dataclass
class Bookie:
    """A bookie that keeps its duties on a dict."""

    entries: dict[int, bytes] = field(default_factory=dict)
    is_fenced: bool = False
    is_down: bool = False
    fault: Status | None = None

    def add(self, entry_id: int, body: bytes, *, is_recovery: bool) -> Status:
        if self.is_fenced and not is_recovery:
            return Status.FENCED
        self.entries[entry_id] = body
        return Status.OK

    def read(self, entry_id: int, *, is_fencing: bool) -> tuple[Status, bytes | None]:
        self.is_fenced |= is_fencing
        if self.fault is not None:
            return self.fault, None
        if not self.entries:
            return Status.NO_SUCH_LEDGER if not self.is_fenced else Status.NO_SUCH_ENTRY, None
        found = self.entries.get(max(self.entries) if entry_id == -1 else entry_id)
        return (Status.OK, found) if found is not None else (Status.NO_SUCH_ENTRY, None)


def make_metadata(
    ensemble_size: int = 3,
    write_quorum: int = 3,
    ack_quorum: int = 2,
    state: LedgerState = LedgerState.IN_RECOVERY,
    fragments: tuple[Fragment, ...] | None = None,
) -> LedgerMetadata:
    names = tuple(f"b{i}" for i in range(ensemble_size))
    return LedgerMetadata(
        ledger_id=LEDGER,
        ensemble_size=ensemble_size,
        write_quorum=write_quorum,
        ack_quorum=ack_quorum,
        state=state,
        fragments=fragments or (Fragment(0, names),),
        digest_type=DigestType.CRC32C,
    )


def make_body(entry_id: int, lac: int, payload: bytes = b"12345") -> bytes:
    header, data = DIGEST.encode_entry(LEDGER, entry_id, lac, 5 * (entry_id + 1), payload)
    return header + bytes(data)


class Writer:
    """Adds entries, and records the confirmed ones."""

    def __init__(self, world: SimulatedRecovery) -> None:
        self.world = world
        self.metadata = world.metadata
        self.pushed = -1
        self.acked: dict[int, set[str]] = {}
        self.confirmed = -1
        self.is_dead = False

    def append(self) -> None:
        if self.is_dead:
            return
        self.pushed += 1
        self.acked[self.pushed] = set()
        body = make_body(self.pushed, self.confirmed)
        for bookie in self.replicas(self.pushed):
            self.world.send(("add", bookie, self.pushed, body))

    def replicas(self, entry_id: int) -> list[str]:
        m = self.metadata
        indices = write_set(entry_id, m.ensemble_size, m.write_quorum)
        return [m.last_fragment.bookies[i] for i in indices]

    def answered(self, bookie: str, entry_id: int, status: Status) -> None:
        if self.is_dead or entry_id <= self.confirmed:
            return
        if status is not Status.OK:
            self.is_dead = True
            return
        self.acked[entry_id].add(bookie)
        while self.confirmed < self.pushed:
            following = self.confirmed + 1
            if len(self.acked[following] & set(self.replicas(following))) < (
                self.metadata.ack_quorum
            ):
                return
            self.confirmed = following

    def replace(self) -> None:
        """An ensemble change: stored first, then everything unconfirmed is sent again."""
        world, last = self.world, self.metadata.last_fragment
        if self.is_dead or world.metadata.state is not LedgerState.OPEN:
            self.is_dead = True
            return
        spares = [b for b in world.bookies if b not in last.bookies]
        if not spares:
            return
        index = world.rng.randrange(len(last.bookies))
        ensemble = list(last.bookies)
        ensemble[index] = spares[0]
        self.metadata = world.metadata.with_ensemble(self.confirmed + 1, tuple(ensemble))
        world.store(self.metadata)
        for entry_id in range(self.confirmed + 1, self.pushed + 1):
            if spares[0] in self.replicas(entry_id):
                world.send(("add", spares[0], entry_id, make_body(entry_id, self.confirmed)))


class Recoverer:
    def __init__(self, world: SimulatedRecovery, window_entries: int) -> None:
        self.world = world
        self.result: LedgerMetadata | None = None
        self.error: LedgerError | None = None
        self.version = -1
        self.core: RecoveryCore | None = None
        metadata = self.begin()
        if metadata.is_closed:
            self.result = metadata
            return
        self.core = RecoveryCore(metadata, DIGEST, window_entries=window_entries)
        self.do(self.core.start())

    @property
    def is_done(self) -> bool:
        return self.result is not None or self.error is not None

    def begin(self) -> LedgerMetadata:
        world = self.world
        if world.metadata.state is LedgerState.OPEN:
            world.store(world.metadata.in_recovery())
        self.version = world.version
        return world.metadata

    def do(self, actions: list[Action]) -> None:
        for action in actions:
            self.world.send(("act", self, action))

    def deliver(self, event: Event) -> None:
        assert self.core is not None
        if self.is_done:
            return
        self.do(self.core.handle(event))
        if self.core.finished:
            try:
                self.result = self.core.result
            except LedgerError as error:
                self.error = error


Message = tuple[object, ...]


class SimulatedRecovery:
    def __init__(self, rng: random.Random, metadata: LedgerMetadata, spares: int = 1) -> None:
        self.rng = rng
        self.metadata = metadata
        self.version = 0
        count = metadata.ensemble_size + spares
        self.bookies = {f"b{i}": Bookie() for i in range(count)}
        self.under_way: list[Message] = []
        self.loss = 0.0
        self.fence_loss = 0.0
        """Share of the fencing reads for the LAC that never arrive."""
        self.slow: tuple[str, ...] = ()
        """Bookies to which the writer's adds are slow."""
        self.is_attacked = False
        self.liar: str | None = None
        """The bookie that lies, if one does."""
        self.writer = Writer(self)

    def store(self, metadata: LedgerMetadata) -> None:
        assert not self.metadata.is_closed, "a closed ledger was changed"
        self.metadata = metadata
        self.version += 1

    def send(self, message: Message) -> None:
        self.under_way.append(message)

    def step(self) -> bool:
        """Delivers one random request or response; returns False if there is none."""
        if not self.under_way:
            return False
        index = self.rng.randrange(len(self.under_way))
        message = self.under_way[index]
        if message[0] == "add" and message[1] in self.slow and self.rng.random() < 0.95:
            return True
        self.under_way[index] = self.under_way[-1]
        self.under_way.pop()
        match message:
            case ("add", str(bookie), int(entry_id), bytes(body)):
                self._add(bookie, entry_id, body)
            case ("added", str(bookie), int(entry_id), Status() as status):
                self.writer.answered(bookie, entry_id, status)
            case ("act", Recoverer() as recoverer, action):
                self._act(recoverer, action)  # type: ignore[arg-type]
            case ("event", Recoverer() as recoverer, event):
                recoverer.deliver(event)  # type: ignore[arg-type]
            case _:
                raise AssertionError(message)
        return True

    def _add(self, name: str, entry_id: int, body: bytes) -> None:
        bookie = self.bookies[name]
        if bookie.is_down or self.rng.random() < self.loss:
            return
        status = bookie.add(entry_id, body, is_recovery=False)
        if self.rng.random() >= self.loss:
            self.send(("added", name, entry_id, status))

    def _act(self, recoverer: Recoverer, action: Action) -> None:
        self.send(("event", recoverer, self._event_of(recoverer, action)))

    def _event_of(self, recoverer: Recoverer, action: Action) -> Event:
        match action:
            case ReplaceBookie():
                taken = (*action.ensemble, *action.excluded)
                spares = [b for b in self.bookies if b not in taken]
                return BookieChosen(action, self.rng.choice(spares) if spares else None)
            case StoreClosed():
                if self.version != recoverer.version:
                    return LedgerConflicted(action, recoverer.begin())
                self.store(action.closed)
                return LedgerStored(action)
            case _:
                return self._ask(action)

    def _ask(self, action: ReadLast | ReadEntry | AddEntry) -> Event:
        bookie = self.bookies[action.bookie]
        if bookie.is_down or self.rng.random() < self.loss:
            return NoAnswer(action, "lost")
        if isinstance(action, ReadLast) and self.rng.random() < self.fence_loss:
            return NoAnswer(action, "fence lost")
        body = None
        if isinstance(action, AddEntry):
            status = bookie.add(action.entry_id, bytes(action.body), is_recovery=True)
        elif isinstance(action, ReadLast):
            status, body = bookie.read(-1, is_fencing=True)
        else:
            status, body = bookie.read(action.entry_id, is_fencing=action.is_fencing)
        if self.rng.random() < self.loss:
            return NoAnswer(action, "answer lost")
        return Answered(action, status, body)

    def forge(self) -> None:
        """Forges entries as a client can: one far ahead, or one that the dead
        writer did not reach, which says that all before it are confirmed.

        In a history either one frame is sent, to one bookie or to all, or one bookie lies as often
        as it likes. A bookie that is an ack quorum by itself decides, so that one never lies.
        """
        ahead = [10_000, 10**12] + ([2, 3, 20] if self.writer.is_dead else [])
        entry_id = self.writer.pushed + self.rng.choice(ahead)
        if not self.is_attacked and self.metadata.ack_quorum > 1 and self.rng.random() < 0.5:
            self.liar = self.rng.choice(list(self.bookies))
        if self.liar is not None:
            for entry in (entry_id, entry_id + 1):
                self.bookies[self.liar].entries[entry] = make_body(entry, entry - 1, b"forged")
        elif not self.is_attacked:
            names = list(self.bookies)
            for name in self.rng.choice([names, [self.rng.choice(names)]]):
                self.bookies[name].entries[entry_id] = make_body(entry_id, entry_id - 1, b"forged")
        self.is_attacked = True

    def heal(self) -> None:
        self.loss = self.fence_loss = 0.0
        for bookie in self.bookies.values():
            bookie.is_down = False
            bookie.fault = None

    def run(self, recoverer: Recoverer, steps_max: int = 100_000) -> None:
        """Makes steps until `recoverer` is done."""
        for _ in range(steps_max):
            if recoverer.is_done or not self.step():
                break
        history = recoverer.core.history() if recoverer.core else ""
        assert recoverer.is_done, f"stuck:\n{history}"

    def check(self) -> None:
        """Checks that a closed ledger has all confirmed entries, each with an ack quorum."""
        m = self.metadata
        assert m.is_closed
        assert self.writer.confirmed <= m.last_entry_id <= self.writer.pushed, (m, self.writer)
        assert m.length == 5 * (m.last_entry_id + 1), m
        for entry_id in range(m.last_entry_id + 1):
            fragment = m.fragment_of(entry_id)
            indices = write_set(entry_id, m.ensemble_size, m.write_quorum)
            bodies = [self.bookies[fragment.bookies[i]].entries.get(entry_id) for i in indices]
            copies = [b for b in bodies if b is not None]
            assert len(copies) >= m.ack_quorum, f"entry {entry_id}: {len(copies)} copies in {m}"
            for body in copies:
                assert DIGEST.decode_entry(LEDGER, entry_id, body).payload == b"12345"
