"""Shows errors of ledgerstream in Spark by their message alone, without a traceback of its workers.

Spark prints an exception of a Python worker below `Traceback (most recent call last)` and many
frames of its own. A LedgerError names the cause, the numbers and the cure, so that its message is
enough. All other errors keep their traceback. Must never affect other code in the process.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from ledger.errors import LedgerError

C = TypeVar("C", bound=type)

HIDE_VARIABLE = "SPARK_HIDE_TRACEBACK"
"""PySpark reads this variable when it reports an error, just before a worker process ends."""


def errors_without_traceback(cls: C) -> C:
    """Decorates a class whose methods Spark calls: a reader, a writer or the data source."""
    for name, member in list(vars(cls).items()):
        if inspect.isfunction(member) and not name.startswith("_"):
            setattr(cls, name, _without_traceback(member))
    return cls


def _without_traceback(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with _hidden_traceback():
            result = function(*args, **kwargs)
        return _rows(result) if isinstance(result, Iterator) else result

    return call


def _rows(rows: Iterator[Any]) -> Iterator[Any]:
    with _hidden_traceback():
        yield from rows


@contextmanager
def _hidden_traceback() -> Iterator[None]:
    try:
        yield
    except BaseExceptionGroup as group:
        single = _single_error(group)
        if single is None:
            raise
        _hide_traceback()
        raise single from None
    except LedgerError:
        _hide_traceback()
        raise


def _single_error(group: BaseExceptionGroup[BaseException]) -> LedgerError | None:
    """Returns the LedgerError of a group that holds nothing else, or None."""
    found: BaseException = group
    while isinstance(found, BaseExceptionGroup) and len(found.exceptions) == 1:
        found = found.exceptions[0]
    return found if isinstance(found, LedgerError) else None


def _hide_traceback() -> None:
    """Hides the traceback in a worker process of PySpark. Does nothing in other processes."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is not None and spec.name.startswith("pyspark."):
        os.environ[HIDE_VARIABLE] = "1"
