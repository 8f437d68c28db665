"""Runs a state machine that does no I/O of its own: runs its actions, and feeds back the events.

Each action becomes a task, and its result is the machine's next event. The driver keeps no state
of its own, and no task outlives the call: when the machine finishes, the others are cancelled.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

import trio

from ledger.errors import LedgerError

Action = TypeVar("Action")
Event = TypeVar("Event")
Action_co = TypeVar("Action_co", covariant=True)
Event_contra = TypeVar("Event_contra", contravariant=True)
Result = TypeVar("Result")
Result_co = TypeVar("Result_co", covariant=True)


class Machine(Protocol[Action_co, Event_contra, Result_co]):
    """A core without I/O: `start` and `handle` return its actions until it is `finished`."""

    @property
    def finished(self) -> bool: ...

    @property
    def result(self) -> Result_co:
        """The result of a finished machine; raises the LedgerError with which it failed."""
        ...

    def start(self) -> Sequence[Action_co]: ...

    def handle(self, event: Event_contra) -> Sequence[Action_co]: ...

    def history(self) -> str:
        """Returns the last events and the state, for messages."""
        ...


async def drive(
    machine: Machine[Action, Event, Result], perform: Callable[[Action], Awaitable[Event]]
) -> Result:
    """Runs `machine` to its end; `perform` does one action and returns the event it leads to.

    Failures of the network or of bookies are events. A LedgerError that `perform` raises
    nevertheless ends the run and is raised here.
    """
    failures: list[LedgerError] = []
    async with trio.open_nursery() as nursery:

        async def run(action: Action) -> None:
            try:
                event = await perform(action)
            except LedgerError as error:
                failures.append(error)
                nursery.cancel_scope.cancel()
                return
            if machine.finished or failures:
                return
            # No await from here on: the machine handles one event at a time.
            begin(machine.handle(event))

        def begin(actions: Sequence[Action]) -> None:
            for action in actions:
                nursery.start_soon(run, action)
            if machine.finished:
                nursery.cancel_scope.cancel()

        begin(machine.start())
    if failures:
        raise failures[0]
    assert machine.finished, f"no action in flight, and not finished:\n{machine.history()}"
    return machine.result
