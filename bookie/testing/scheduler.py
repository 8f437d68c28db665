"""A seeded order of tasks and virtual time, which make a whole run a function of its seed.

Only this module uses trio's private switch for deterministic scheduling. Time does not pass while
any task can run and then jumps to the next deadline or event. Nothing here may read a real clock or
real chance.
"""

from __future__ import annotations

import functools
import gc
import hashlib
import heapq
import math
import os
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO, TypeVar

import trio
from trio._core import _run as _trio_run

ResultT = TypeVar("ResultT")

EPOCH_MS = 1_700_000_000_000
"""Wall-clock time at which every simulation begins, in milliseconds."""

STEPS_WITHOUT_TIME_MAX = 300_000
"""Scheduler rounds without progress of time after which a run counts as spinning."""


_IDLE_POLLS_MAX = 3
_SUMMARY_LINES_MAX = 7
_ROOT = Path(__file__).parents[2]
_INTERNAL = (
    *(f"{_ROOT / name}{os.sep}" for name in ("ledger", "stream", "bookie")),
    f"{Path(trio.__file__).parent}{os.sep}",
    f"{Path(os.__file__).parent}{os.sep}",
)


class SimulationStuck(AssertionError):
    """The simulated world is blocked, spins, or exceeded its time limit.

    The message names the reason and the tasks of the program under test; `tasks` is the tree of all
    tasks, with the line at which each waits.
    """

    def __init__(self, message: str, tasks: str = "") -> None:
        super().__init__(message)
        self.tasks = tasks


class Simulation:
    """One simulated world: its seed, its time, its queue of events and its trace.

    Events are plain callbacks, run between two rounds of tasks: a message or a finished disk
    operation costs no task of its own.
    """

    def __init__(self, seed: int, *, time_limit_s: float, trace_file: TextIO | None) -> None:
        self.seed = seed
        self.time_limit_s = time_limit_s
        self.events_traced = 0
        self.failure: BaseException | None = None
        self.is_over = False
        self.stuck_because = ""
        self._now_s = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._events_scheduled = 0
        self._events_cancelled: dict[int, None] = {}
        self._hash = hashlib.sha256()
        self._trace_file = trace_file
        self._stopping = trio.Event()

    @property
    def now_s(self) -> float:
        """The virtual seconds since the beginning; equals `trio.current_time()`."""
        return self._now_s

    def now_ms(self, skew_ms: int = 0) -> int:
        """Returns the virtual wall clock of a node whose clock is off by `skew_ms`."""
        return EPOCH_MS + int(self._now_s * 1000) + skew_ms

    def chance(self, name: str) -> random.Random:
        """Returns a source of chance of its own for `name`, so that parts do not influence each
        other."""
        return random.Random(f"{self.seed}/{name}")

    def call_at(self, time_s: float, callback: Callable[[], None]) -> None:
        """Runs `callback` at virtual `time_s`, before any task that is due then."""
        self._events_scheduled += 1
        heapq.heappush(self._events, (max(time_s, self._now_s), self._events_scheduled, callback))

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> None:
        self.call_at(self._now_s + delay_s, callback)

    async def sleep(self, seconds: float) -> None:
        """Does what `trio.sleep` does, with the same order of tasks, at a third of its cost."""
        if self._now_s + seconds <= self._now_s:
            await trio.sleep(seconds)
            return
        number = self._wake_at(self._now_s + seconds)

        def abort(_: object) -> trio.lowlevel.Abort:
            self._events_cancelled[number] = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)
        await trio.lowlevel.checkpoint_if_cancelled()  # costs a step only in that very moment

    async def sleep_shielded(self, seconds: float) -> None:
        """Sleeps as in a shielded scope: a cancellation is delivered afterwards."""
        if self._now_s + seconds <= self._now_s:
            with trio.CancelScope(shield=True):
                await trio.sleep(seconds)
            return
        self._wake_at(self._now_s + seconds)
        await trio.lowlevel.wait_task_rescheduled(lambda _: trio.lowlevel.Abort.FAILED)

    def _wake_at(self, time_s: float) -> int:
        """Schedules that the current task runs again, and returns the number of that event."""
        self.call_at(
            time_s, functools.partial(trio.lowlevel.reschedule, trio.lowlevel.current_task())
        )
        return self._events_scheduled

    def trace(self, *words: object) -> None:
        """Adds a line to the trace. Only values with a stable text: no objects, no addresses."""
        line = f"{self._now_s:.6f} " + " ".join(map(str, words)) + "\n"
        self.events_traced += 1
        self._hash.update(line.encode())
        if self._trace_file is not None:
            self._trace_file.write(line)

    def trace_hash(self) -> str:
        """The digest of everything that was traced: equal for equal seeds, in any process."""
        return self._hash.hexdigest()

    def fail(self, error: BaseException) -> None:
        """Ends the run with `error`; the first one wins. For checks inside callbacks."""
        if self.failure is None:
            self.failure = error
        self._stopping.set()

    def _run_events_until(self, deadline: float) -> bool:
        """Moves time to an event or to `deadline`, whichever is first; returns False if there is
        neither."""
        while self._events and self._events[0][1] in self._events_cancelled:
            del self._events_cancelled[heapq.heappop(self._events)[1]]
        next_s = min(deadline, self._events[0][0]) if self._events else deadline
        if next_s == math.inf:
            self.stuck_because = "nothing can happen any more: each task waits for another one"
            return False
        if next_s > self.time_limit_s and not self.is_over:
            self.stuck_because = (
                f"the time limit of {self.time_limit_s:g} virtual seconds is over (time_limit_s)"
            )
            return False
        self._now_s = max(self._now_s, next_s)
        while self._events and self._events[0][0] <= self._now_s:
            _, number, callback = heapq.heappop(self._events)
            if number in self._events_cancelled:
                del self._events_cancelled[number]
                continue
            try:
                callback()
            except Exception as error:  # noqa: BLE001 - an exception here would break trio itself
                self.fail(error)
        return True


class _VirtualClock(trio.abc.Clock):
    """Virtual time. trio asks how long to sleep only when no task can run: then time jumps."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._idle_polls = 0

    def start_clock(self) -> None:
        pass

    def current_time(self) -> float:
        return self._simulation.now_s

    def deadline_to_sleep_time(self, deadline: float) -> float:
        simulation = self._simulation
        if deadline <= simulation.now_s or simulation._run_events_until(deadline):
            self._idle_polls = 0
            return 0
        # trio itself has one real socket, to wake itself up at the end: check it first.
        self._idle_polls += 1
        if self._idle_polls == _IDLE_POLLS_MAX:
            simulation.is_over = True
            simulation._stopping.set()
        elif self._idle_polls > 100 * _IDLE_POLLS_MAX:
            raise RuntimeError("the simulation is stuck even after it was cancelled")
        return 0.001


class _WatchedPoll:
    """The I/O manager of trio's loop, which calls the operating system only when it must.

    The only file descriptor that is ever ready in a simulation is the one by which trio wakes
    itself, while its queue of calls is not empty. It also notices tasks that run forever at one
    point of virtual time.
    """

    def __init__(self, simulation: Simulation, runner: _trio_run.Runner) -> None:
        self._simulation = simulation
        self._inner = runner.io_manager
        self._calls = runner.entry_queue
        self._time_s = -1.0
        self._steps = 0

    def get_events(self, timeout: float) -> object:
        if self._simulation.now_s != self._time_s:
            self._time_s = self._simulation.now_s
            self._steps = 0
        self._steps += 1
        if self._steps == STEPS_WITHOUT_TIME_MAX:
            self._simulation.stuck_because = (
                f"tasks spin: they ran {STEPS_WITHOUT_TIME_MAX} times while no time passed"
            )
            self._simulation._stopping.set()
        if timeout == 0 and not self._calls.queue and not self._calls.idempotent_queue:
            return ()
        return self._inner.get_events(timeout)

    def process_events(self, events: Any) -> None:
        if events:
            self._inner.process_events(events)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def task_tree() -> str:
    """Returns all tasks of this trio run with the line each of them waits at."""
    root = trio.lowlevel.current_root_task()
    return "\n".join(_task_lines(root, 0)) if root is not None else ""


def _waiting_summary() -> str:
    """Returns what each task waits for: a line for each task with code that is not ours."""
    root = trio.lowlevel.current_root_task()
    tasks, lines = [root] if root is not None else [], []
    internal = 0
    while tasks:
        task = tasks.pop()
        for nursery in task.child_nurseries:
            tasks += sorted(nursery.child_tasks, key=lambda child: -child._counter)
        frames = [(frame.f_code, line) for frame, line in task.iter_await_frames()]
        theirs = [n for n, (code, _) in enumerate(frames) if not _is_internal(code.co_filename)]
        if not theirs:
            internal += 1
            continue
        code, line = frames[theirs[-1]]
        waits = frames[theirs[-1] + 1][0].co_qualname if theirs[-1] + 1 < len(frames) else "trio"
        place = f"{Path(code.co_filename).name}:{line}"
        lines.append(f"  {code.co_name} ({place}) waits for {waits}")
    more = len(lines) - _SUMMARY_LINES_MAX
    shown = lines[:_SUMMARY_LINES_MAX] + ([f"  and {more} more"] if more > 0 else [])
    return "\n".join([*shown, f"  and {internal} tasks of the cluster (see .tasks)"])


def _is_internal(file_name: str) -> bool:
    """Whether code is that of the product, of trio, or of the standard library."""
    return file_name.startswith(_INTERNAL)


def waiting_at(task: trio.lowlevel.Task) -> list[str]:
    """Returns where a task waits, outermost call first; trio's own frames are left out."""
    lines = []
    for frame, line in task.iter_await_frames():
        path = "/".join(frame.f_code.co_filename.split("/")[-2:])
        if not path.startswith(("_core/", "trio/")):
            lines.append(f"{path}:{line} in {frame.f_code.co_name}")
    return lines


def _task_lines(task: trio.lowlevel.Task, depth: int) -> Iterator[str]:
    indent = "  " * depth
    yield f"{indent}- {task.name}"
    for line in waiting_at(task):
        yield f"{indent}    {line}"
    for nursery in task.child_nurseries:
        for child in sorted(nursery.child_tasks, key=lambda child: child._counter):
            yield from _task_lines(child, depth + 1)


@contextmanager
def seeded_trio(seed: int) -> Iterator[None]:
    """Runs tasks in an order that the seed alone decides, in or around trio; restores chance."""
    chance, was_deterministic = _trio_run._r, _trio_run._ALLOW_DETERMINISTIC_SCHEDULING
    state, was_collecting = chance.getstate(), gc.isenabled()
    # setattr: the switch is declared Final.
    setattr(_trio_run, "_ALLOW_DETERMINISTIC_SCHEDULING", True)  # noqa: B010
    chance.seed(seed)
    gc.disable()  # finalizers may act, and when they run depends on what ran before
    try:
        yield
    finally:
        setattr(_trio_run, "_ALLOW_DETERMINISTIC_SCHEDULING", was_deterministic)  # noqa: B010
        chance.setstate(state)
        if was_collecting:
            gc.enable()


def run_simulated(
    async_fn: Callable[[Simulation], Awaitable[ResultT]],
    seed: int,
    *,
    time_limit_s: float = 3600.0,
    trace_file: TextIO | None = None,
) -> ResultT:
    """Runs `async_fn(simulation)` in virtual time with all chance drawn from `seed`.

    `time_limit_s` bounds virtual time. Raises what `async_fn` raises, the error given to
    `Simulation.fail`, or `SimulationStuck` with the task tree when nothing can ever happen
    again. May not be called from within trio; leaves trio as it found it.
    """
    simulation = Simulation(seed, time_limit_s=time_limit_s, trace_file=trace_file)

    async def watch(scope: trio.CancelScope) -> None:
        await simulation._stopping.wait()
        if simulation.failure is None:
            simulation.failure = SimulationStuck(
                f"seed {seed}: stuck at virtual second {simulation.now_s:.3f}: "
                f"{simulation.stuck_because}\n{_waiting_summary()}",
                task_tree(),
            )
        scope.cancel()

    async def main() -> ResultT:
        runner = _trio_run.GLOBAL_RUN_CONTEXT.runner
        # setattr: it is declared as trio's own class.
        setattr(runner, "io_manager", _WatchedPoll(simulation, runner))  # noqa: B010
        error: BaseException | None = None
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(watch, nursery.cancel_scope, name="simulation watchdog")
                try:
                    result = await async_fn(simulation)
                except Exception as raised:  # noqa: BLE001 - raised again outside the nursery
                    error = raised
                nursery.cancel_scope.cancel()
        except BaseException as raised:
            # What dying tasks raise because of a failure must not hide it.
            if simulation.failure is None:
                raise
            error = raised
        if simulation.failure is not None:
            raise simulation.failure from error
        # Groups of one error come from nurseries of the simulator: they are unwrapped.
        while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
            error = error.exceptions[0]
        if error is not None:
            raise error
        return result

    with seeded_trio(seed):
        return trio.run(main, clock=_VirtualClock(simulation))
