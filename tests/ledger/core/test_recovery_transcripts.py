"""Transcripts of recovery: the events, and after each the actions of the core.

A step is the line of an event, `----`, and the resulting actions. `REWRITE_TRANSCRIPTS=1 pytest
tests/ledger/core/test_recovery_transcripts.py` records them again; the diff is the review.

Steps: `ledger E WQ AQ [first:b0,b1,... ...]`; `start [window N]`; `last BOOKIE ANSWER`;
`read BOOKIE ENTRY ANSWER`; `add BOOKIE ENTRY ANSWER`; `chosen BOOKIE|none`; `stored`;
`conflict closed LAST LENGTH`; `conflict moved FIRST b0,b1,...`. An answer is `entry ID lac LAC`,
`ok`, `silent`, or a status such as `no_such_entry`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeVar

import pytest

from ledger.core.metadata import Fragment, LedgerMetadata
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
from tests.ledger.core.simulated_recovery import DIGEST, make_body, make_metadata

T = TypeVar("T")

TRANSCRIPTS = Path(__file__).parents[2] / "transcripts"


class TranscriptRunner:
    """Runs one transcript."""

    def __init__(self) -> None:
        self.metadata = make_metadata()
        self.core: RecoveryCore | None = None
        self.pending: list[Action] = []

    def step(self, line: str) -> list[str]:
        words = line.split()
        match words:
            case ["ledger", e, wq, aq, *fragments]:
                parsed = tuple(
                    Fragment(int(f.split(":")[0]), tuple(f.split(":")[1].split(",")))
                    for f in fragments
                )
                self.metadata = make_metadata(int(e), int(wq), int(aq), fragments=parsed or None)
                return [", ".join(shown_fragments(self.metadata))]
            case ["start", *rest]:
                window = int(rest[1]) if rest else 1
                self.core = RecoveryCore(self.metadata, DIGEST, window_entries=window)
                return self.show(self.core.start())
            case _:
                assert self.core is not None, "no start"
                return self.show(self.core.handle(self.event(words)))

    def event(self, words: list[str]) -> Event:
        match words:
            case ["last", bookie, *said]:
                return self.answer(self.take(ReadLast, bookie=bookie), said)
            case ["read", bookie, entry_id, *said]:
                read = self.take(ReadEntry, bookie=bookie, entry_id=int(entry_id))
                return self.answer(read, said)
            case ["add", bookie, entry_id, *said]:
                add = self.take(AddEntry, bookie=bookie, entry_id=int(entry_id))
                return self.answer(add, said)
            case ["chosen", bookie]:
                return BookieChosen(self.take(ReplaceBookie), None if bookie == "none" else bookie)
            case ["stored"]:
                return LedgerStored(self.take(StoreClosed))
            case ["conflict", "closed", last, length]:
                theirs = self.metadata.closed(int(last), int(length))
                return LedgerConflicted(self.take(StoreClosed), theirs)
            case ["conflict", "moved", first, bookies]:
                moved = self.metadata.with_ensemble(int(first), tuple(bookies.split(",")))
                return LedgerConflicted(self.take(StoreClosed), moved)
            case _:
                raise AssertionError(f"no such step: {' '.join(words)}")

    def take(self, kind: type[T], **fields: object) -> T:
        """Removes and returns the pending action that this response belongs to."""
        for action in self.pending:
            if isinstance(action, kind) and all(
                getattr(action, name) == value for name, value in fields.items()
            ):
                self.pending.remove(action)
                return action
        raise AssertionError(f"no pending action of this kind: {kind.__name__} {fields}")

    def answer(self, action: ReadLast | ReadEntry | AddEntry, said: list[str]) -> Event:
        match said:
            case ["silent"]:
                return NoAnswer(action, "no answer")
            case ["entry", entry_id, "lac", lac]:
                return Answered(action, Status.OK, make_body(int(entry_id), int(lac)))
            case [status]:
                return Answered(action, Status[status.upper()])
            case _:
                raise AssertionError(f"no such answer: {said}")

    def show(self, actions: list[Action]) -> list[str]:
        assert self.core is not None
        self.pending += actions
        shown = [shown_action(action) for action in actions]
        if self.core.finished:
            try:
                result = self.core.result
            except LedgerError as error:
                return [*shown, f"{type(error).__name__}: {error}"]
            return [*shown, f"closed at {result.last_entry_id}, {result.length} bytes"]
        return shown or ["(waits)"]


def shown_fragments(metadata: LedgerMetadata) -> list[str]:
    return [f"{f.first_entry_id}: {' '.join(f.bookies)}" for f in metadata.fragments]


def shown_action(action: Action) -> str:
    match action:
        case ReadLast():
            return f"fence {action.bookie} and read its last entry"
        case ReadEntry():
            how = "fencing read" if action.is_fencing else "read"
            how = "check by a read" if action.is_check else how
            return f"{how} of entry {action.entry_id} at {action.bookie}"
        case AddEntry():
            return f"add entry {action.entry_id} at {action.bookie}"
        case ReplaceBookie():
            return f"replace {action.ensemble[action.index]} in {' '.join(action.ensemble)}"
        case StoreClosed():
            closed = action.closed
            return f"store closed at {closed.last_entry_id}, {closed.length} bytes, " + ", ".join(
                shown_fragments(closed)
            )


def transcript_of(text: str) -> str:
    """Returns the transcript with the actions of the present core."""
    teller = TranscriptRunner()
    lines: list[str] = []
    is_output = False
    for line in text.splitlines():
        if line == "----":
            continue
        if not line.strip():
            is_output = False
            lines.append("")
        elif line.startswith("#"):
            lines.append(line)
        elif not is_output:
            lines += [line, "----", *teller.step(line)]
            is_output = True
    return "\n".join(lines).rstrip() + "\n"


@pytest.mark.parametrize("path", sorted(TRANSCRIPTS.glob("recovery_*.txt")), ids=lambda p: p.stem)
def test_the_transcript_equals_the_recorded_one(path: Path) -> None:
    text = path.read_text()
    now = transcript_of(text)
    if os.environ.get("REWRITE_TRANSCRIPTS"):
        path.write_text(now)
    else:
        assert now == text


def test_there_are_transcripts() -> None:
    assert len(list(TRANSCRIPTS.glob("recovery_*.txt"))) >= 4
