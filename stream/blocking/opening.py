"""Opening and closing without a block: for notebooks, REPLs and attributes of classes.

`with namespace.writer("log") as writer` and `writer = namespace.open_writer("log")` open the same.
What was opened keeps its connection alive, whether or not its block is kept. What is dropped
without being closed is abandoned, with a ResourceWarning. Its twin for asyncio is
ledger/runtime/opening.py.
"""

from __future__ import annotations

import functools
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, NoReturn, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T", bound="Opened")


class Opened:
    """What can be closed; base of all objects that are opened."""

    _block: AbstractContextManager[Any, bool | None] | None = None
    """The block of the object, which ends if it is collected: so it is kept here."""
    _is_closable = False
    """Whether it was opened without a block, and somebody has to close it."""
    _opened: list[weakref.ref[Opened]]
    """What was opened from it, oldest first."""

    def _leave(self) -> None:
        """Closes what was opened from it, newest first, and then itself. Idempotent."""
        opened, self._opened = getattr(self, "_opened", []), []
        try:
            _leave_all([child for each in opened if (child := each()) is not None])
        finally:
            block, is_closable = self._block, self._is_closable
            self._is_closable = False
            if block is not None and is_closable:
                self._block = None
                block.__exit__(None, None, None)

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


def _leave_all(opened: list[Opened]) -> None:
    """Closes the newest first, and all of them even if some raise; raises the last error."""
    if opened:
        try:
            opened[-1]._leave()
        finally:
            _leave_all(opened[:-1])


class Opening(Generic[T]):
    """Something to open: in a `with` block, or with `open` until it is closed."""

    def __init__(
        self,
        name: str,
        block: AbstractContextManager[T, bool | None],
        parent: Opened | None,
    ) -> None:
        self._name = name
        self._block = block
        self._parent = parent
        self._value: T | None = None

    def __enter__(self) -> T:
        value = self._block.__enter__()
        value._block = self._block
        self._value = value
        return value

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        value, self._value = self._value, None
        if value is not None and kind is None:
            try:
                value._leave()  # closes what was opened from it without a block
            except BaseException as failed:
                self._block.__exit__(type(failed), failed, failed.__traceback__)
                raise
        return self._block.__exit__(kind, error, traceback)

    def open(self) -> T:
        """Opens it without a block; the caller closes it."""
        value = self.__enter__()
        self._value = None
        value._is_closable = True
        if self._parent is not None:
            self._parent._note_opened(value)
        return value

    def __repr__(self) -> str:
        return f"<{self._name}(...), not open yet>"

    def _refuse(self, name: str) -> NoReturn:
        raise AttributeError(
            f"{self._name}(...) is not open yet and has no {name!r}: use it in `with`, or call "
            f"its `open()` and close what that returns"
        )

    if not TYPE_CHECKING:  # a type checker says that there is no such attribute
        __getattr__ = _refuse


def opening(function: Callable[P, Iterator[T]]) -> Callable[P, Opening[T]]:
    """Makes a generator function that yields once into a function that returns an `Opening`."""
    manager = contextmanager(function)

    @functools.wraps(function)
    def opened(*args: P.args, **kwargs: P.kwargs) -> Opening[T]:
        parent = args[0] if args and isinstance(args[0], Opened) else None
        return Opening(function.__qualname__, manager(*args, **kwargs), parent)

    return opened
