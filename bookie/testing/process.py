"""A process of the simulated world: a task tree that can be killed.

Death freezes the interfaces first and cancels second: a cancelled task runs its `finally` blocks,
and dying code must not flush, reply or register.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator

import trio


class SimProcess:
    """One incarnation of a process. `freeze` takes its interfaces away; see `kill`.

    `error` is the error of which it died by itself, after `finished` is set.
    """

    def __init__(self, name: str, freeze: Callable[[], None]) -> None:
        self.name = name
        self.is_dead = False
        self.error: BaseException | None = None
        self.started = trio.Event()
        self.finished = trio.Event()
        self._freeze = freeze
        self._scope = trio.CancelScope()

    @property
    def is_running(self) -> bool:
        return not self.is_dead and not self.finished.is_set()

    async def run(self, body: Callable[[], Awaitable[None]]) -> None:
        """Runs `body` until it ends, fails or is killed. Its error is stored in `error`."""
        try:
            with self._scope:
                if not self.is_dead:  # killed before it ran: its interfaces are gone already
                    await body()
        except BaseExceptionGroup as group:
            # A cancellation from outside may arrive together with the failures it caused.
            errors, cancellations = group.split(Exception)
            if errors is not None:
                self._failed(errors)
            if cancellations is not None:
                raise cancellations from None
        except Exception as error:  # noqa: BLE001 - a process that crashes, not a program's bug
            self._failed(error)
        finally:
            if not self.is_dead:
                self.is_dead = True
                self._freeze()
            self.started.set()
            self.finished.set()

    def _failed(self, error: Exception) -> None:
        if not self.is_dead:
            self.error = error

    def kill(self) -> None:
        """Freezes the interfaces and cancels all tasks. `await finished.wait()` afterwards."""
        if self.is_dead:
            return
        self.is_dead = True
        self._freeze()
        self._scope.cancel()


def leaves_of(error: BaseException) -> Iterator[BaseException]:
    """Yields the errors inside nested groups."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaves_of(inner)
    else:
        yield error
