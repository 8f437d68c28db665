"""Opening and closing without a block: for notebooks, REPLs and attributes of classes.

`async with namespace.writer("log") as writer` and `writer = await namespace.open_writer("log")`
open the same. What was opened keeps its connection alive, whether or not its block is kept. What is
dropped without being closed is abandoned, with a ResourceWarning.

A block of trio has tasks that must not outlive it: opened without one, it is entered and left in a
system task of trio (`opening_in_task`). The faces for asyncio and threads have such a task in their
background loop (`opening`); stream/blocking/opening.py is the twin for threads.
"""

from __future__ import annotations

import functools
import warnings
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, NoReturn, ParamSpec, TypeVar

import trio

P = ParamSpec("P")
V = TypeVar("V")
T = TypeVar("T", bound="Opened")
Manager = AbstractAsyncContextManager[T, bool | None]


class Opened:
    """What can be closed; base of all objects that are opened."""

    _block: AbstractAsyncContextManager[Any, bool | None] | None = None
    """The block of the object, which ends if it is collected: so it is kept here."""
    _is_closable = False
    """Whether it was opened without a block, and somebody has to close it."""
    _opened: list[weakref.ref[Opened]]
    """What was opened from it, oldest first."""

    async def _leave(self) -> None:
        """Closes what was opened from it, newest first, and then itself. Idempotent."""
        opened, self._opened = getattr(self, "_opened", []), []
        try:
            await _leave_all([child for each in opened if (child := each()) is not None])
        finally:
            block, is_closable = self._block, self._is_closable
            self._is_closable = False
            if block is not None and is_closable:
                self._block = None
                await block.__aexit__(None, None, None)

    def _note_opened(self, child: Opened) -> None:
        opened = [each for each in getattr(self, "_opened", []) if each() is not None]
        self._opened = [*opened, weakref.ref(child)]

    def _description(self) -> str:
        """What `repr` shows; the objects of the faces show what trio's objects do."""
        inner: Opened = vars(self)["_inner"]
        return inner._description()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._description()}>"

    def __del__(self) -> None:
        if self._is_closable:
            warnings.warn(f"{self!r} was not closed", ResourceWarning, stacklevel=2, source=self)


class Closable(Opened):
    """What is opened and needs nothing else at its end."""

    async def close(self) -> None:
        """Closes what was opened from it without a block, newest first, and then itself, unless a
        block does. Idempotent."""
        await self._leave()


async def _leave_all(opened: list[Opened]) -> None:
    """Closes the newest first, and all of them even if some raise; raises the last error."""
    if opened:
        try:
            await opened[-1]._leave()
        finally:
            await _leave_all(opened[:-1])


class Opening(Generic[T]):
    """Something to open: in an `async with` block, or with `await` until it is closed."""

    def __init__(
        self,
        name: str,
        block: AbstractAsyncContextManager[T, bool | None],
        parent: Opened | None,
    ) -> None:
        self._name = name
        self._block = block
        self._parent = parent
        self._value: T | None = None

    async def __aenter__(self) -> T:
        value = await self._block.__aenter__()
        value._block = self._block
        self._value = value
        return value

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        value, self._value = self._value, None
        if value is not None and kind is None:
            try:
                await value._leave()  # closes what was opened from it without a block
            except BaseException as failed:
                await self._block.__aexit__(type(failed), failed, failed.__traceback__)
                raise
        return await self._block.__aexit__(kind, error, traceback)

    def __await__(self) -> Generator[Any, Any, T]:
        return self.open().__await__()

    async def open(self) -> T:
        """Opens it without a block; the caller closes it."""
        value = await self.__aenter__()
        self._value = None
        value._is_closable = True
        if self._parent is not None:
            self._parent._note_opened(value)
        return value

    def __repr__(self) -> str:
        return f"<{self._name}(...), not open yet>"

    def _refuse(self, name: str) -> NoReturn:
        raise AttributeError(
            f"{self._name}(...) is not open yet and has no {name!r}: use it in `async with`, or "
            f"`await` it and close what that returns"
        )

    if not TYPE_CHECKING:  # a type checker says that there is no such attribute
        __getattr__ = _refuse


class _TaskOpening(Opening[T]):
    """Enters and leaves the block in a system task if it is opened without one."""

    async def __aenter__(self) -> T:
        try:
            trio.lowlevel.current_task()
        except RuntimeError:
            raise RuntimeError(
                f"{self._name}(...) is for trio, and no trio event loop runs here; with asyncio "
                "use `ledgerstream.aio`, in plain functions `ledgerstream.blocking`"
            ) from None
        return await super().__aenter__()

    async def open(self) -> T:
        self._block = _TaskBlock(self._block)
        return await super().open()


class _TaskBlock(Generic[V]):
    """A context manager that is entered and left in a system task of trio.

    The end of the run cancels it, if nobody closed it before.
    """

    def __init__(self, block: AbstractAsyncContextManager[V, bool | None]) -> None:
        self._block = block
        self._scope = trio.CancelScope()
        self._entered, self._leaving, self._left = trio.Event(), trio.Event(), trio.Event()
        self._values: list[V] = []
        self._error: BaseException | None = None

    async def __aenter__(self) -> V:
        trio.lowlevel.spawn_system_task(self._run, name=f"opened {self._block!r}")
        await self._wait(self._entered)
        if self._error is not None:
            raise self._error
        return self._values.pop()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._leaving.set()
        await self._wait(self._left)
        if self._error is not None:
            raise self._error

    async def _wait(self, event: trio.Event) -> None:
        try:
            await event.wait()
        except BaseException:
            self._scope.cancel()
            with trio.CancelScope(shield=True):
                await self._left.wait()
            raise

    async def _run(self) -> None:
        try:
            with self._scope:
                async with self._block as value:
                    self._values.append(value)
                    del value
                    self._entered.set()
                    await self._leaving.wait()
        except trio.Cancelled:  # the run ends
            raise
        except BaseException as error:  # noqa: BLE001 (raised in the caller of open or close)
            self._error = error
        finally:
            self._entered.set()
            self._left.set()


def opening(function: Callable[P, AsyncIterator[T]]) -> Callable[P, Opening[T]]:
    """Makes a generator function that yields once into a function that returns an `Opening`."""
    return _opening(asynccontextmanager(function), Opening)


def opening_in_task(function: Callable[P, Manager[T]]) -> Callable[P, Opening[T]]:
    """Makes a function that returns a context manager of trio into one that returns an `Opening`.

    Opened without a block, the context manager gets a task of its own.
    """
    return _opening(function, _TaskOpening)


def _opening(function: Callable[P, Manager[T]], kind: type[Opening[T]]) -> Callable[P, Opening[T]]:
    @functools.wraps(function)
    def opened(*args: P.args, **kwargs: P.kwargs) -> Opening[T]:
        return kind(function.__qualname__, function(*args, **kwargs), _parent(args))

    return opened


def opened_by(function: Callable[P, Manager[T]]) -> Callable[P, Awaitable[T]]:
    """Makes the twin that opens without a block what this function opens in one."""

    @functools.wraps(function)
    async def opened(*args: P.args, **kwargs: P.kwargs) -> T:
        block = function(*args, **kwargs)
        if not isinstance(block, Opening):  # an object that is its own block, and has no tasks
            block = Opening(function.__qualname__, block, _parent(args))
        return await block.open()

    opened.__doc__ = (
        f"Opens what `{function.__name__}` opens, with its arguments and errors: close it."
    )
    return opened


def _parent(args: tuple[object, ...]) -> Opened | None:
    return args[0] if args and isinstance(args[0], Opened) else None
