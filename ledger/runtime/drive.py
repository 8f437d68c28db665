"""Runs any cold state machine: its actions become tasks, their results its next events.

The machine decides, this does. It keeps no state of its own, and a task never outlives the
call: what is still under way when the machine has finished is cancelled.
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
    """A cold core: decides by `start` and `handle`, and knows when it is `finished`."""

    @property
    def finished(self) -> bool: ...

    @property
    def result(self) -> Result_co:
        """What the machine came to; raises the LedgerError it failed with."""
        ...

    def start(self) -> Sequence[Action_co]: ...

    def handle(self, event: Event_contra) -> Sequence[Action_co]: ...

    def story(self) -> str: ...


async def drive(
    machine: Machine[Action, Event, Result], perform: Callable[[Action], Awaitable[Event]]
) -> Result:
    """Run `machine` to its end; `perform` does one action and returns what came of it.

    What the world did wrong belongs into the event. A LedgerError that `perform` raises all
    the same ends the run and is raised here.
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
            # No await from here on: the machine sees one event at a time.
            begin(machine.handle(event))

        def begin(actions: Sequence[Action]) -> None:
            for action in actions:
                nursery.start_soon(run, action)
            if machine.finished:
                nursery.cancel_scope.cancel()

        begin(machine.start())
    if failures:
        raise failures[0]
    assert machine.finished, f"nothing left to wait for, and not finished:\n{machine.story()}"
    return machine.result
