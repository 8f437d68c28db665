"""Errors that Spark shows with their own words first, instead of a traceback of its workers.

Spark prints what a Python worker raised below `Traceback (most recent call last)` and many frames
that are nobody's business. Errors of ours name the cause, the numbers and the cure: they are shown
alone. All others keep their traceback. Must change nothing for anybody else in the process.
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
"""PySpark reads it when it writes down an error, as the last act of a worker process."""


def errors_without_traceback(cls: C) -> C:
    """Class decorator for what Spark calls: readers, writers, the data source."""
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
        alone = _single_error(group)
        if alone is None:
            raise
        _hide_traceback()
        raise alone from None
    except LedgerError:
        _hide_traceback()
        raise


def _single_error(group: BaseExceptionGroup[BaseException]) -> LedgerError | None:
    """The one error of ours in a group that holds nothing else."""
    found: BaseException = group
    while isinstance(found, BaseExceptionGroup) and len(found.exceptions) == 1:
        found = found.exceptions[0]
    return found if isinstance(found, LedgerError) else None


def _hide_traceback() -> None:
    """In a process of PySpark's that ends with this error; elsewhere nothing."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is not None and spec.name.startswith("pyspark."):
        os.environ[HIDE_VARIABLE] = "1"
