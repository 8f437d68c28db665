"""Opening and closing without a block: for notebooks, REPLs and attributes of classes.

`async with namespace.writer("log") as writer` and `writer = await namespace.open_writer("log")`
open the same. What was opened keeps its connection alive, whether or not its block is kept. What is
dropped without being closed is abandoned, with a ResourceWarning. Its twin for threads is
stream/blocking/opening.py.
"""

from __future__ import annotations

import functools
import warnings
import weakref
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, NoReturn, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T", bound="Opened")


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
        for reference in reversed(opened):
            child = reference()
            if child is not None and child._is_closable:
                await child._close_opened()
        block, is_closable = self._block, self._is_closable
        self._is_closable = False
        if block is not None and is_closable:
            self._block = None
            await block.__aexit__(None, None, None)

    async def _close_opened(self) -> None:
        await self._leave()

    def _note_opened(self, child: Opened) -> None:
        opened = [each for each in getattr(self, "_opened", []) if each() is not None]
        self._opened = [*opened, weakref.ref(child)]

    def __del__(self) -> None:
        if self._is_closable:
            warnings.warn(f"{self!r} was not closed", ResourceWarning, stacklevel=2, source=self)


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
            await value._leave()  # closes what was opened from it without a block
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

    def _refuse(self, name: str) -> NoReturn:
        raise AttributeError(
            f"{self._name}(...) is not open yet and has no {name!r}: use it in `async with`, or "
            f"`await` it and close what that returns"
        )

    if not TYPE_CHECKING:  # a type checker says that there is no such attribute
        __getattr__ = _refuse


def opening(function: Callable[P, AsyncIterator[T]]) -> Callable[P, Opening[T]]:
    """Makes a generator function that yields once into a function that returns an `Opening`."""
    manager = asynccontextmanager(function)

    @functools.wraps(function)
    def opened(*args: P.args, **kwargs: P.kwargs) -> Opening[T]:
        parent = args[0] if args and isinstance(args[0], Opened) else None
        return Opening(function.__qualname__, manager(*args, **kwargs), parent)

    return opened
