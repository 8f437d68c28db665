"""Spark shows a LedgerError by its message; the traceback of other errors is not hidden."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from connectors.spark.error_messages import HIDE_VARIABLE, errors_without_traceback
from ledger.errors import InvalidArgument


@errors_without_traceback
class Failing:
    def reads(self, error: BaseException) -> None:
        raise error

    def yields(self, error: BaseException) -> Iterator[int]:
        yield 1
        raise error

    def returns_rows(self, error: BaseException) -> Iterator[int]:
        return self.yields(error)

    def adds(self, one: int, *, two: int) -> int:
        """Adds."""
        return one + two


@pytest.fixture
def _in_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    main = SimpleNamespace(__spec__=SimpleNamespace(name="pyspark.daemon"))
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setenv(HIDE_VARIABLE, "")


def is_hidden() -> bool:
    return bool(os.environ.get(HIDE_VARIABLE))


@pytest.mark.usefixtures("_in_a_worker")
def test_ledger_errors_hide_the_traceback() -> None:
    with pytest.raises(InvalidArgument, match="wrong"):
        Failing().reads(InvalidArgument("wrong"))
    assert is_hidden()


@pytest.mark.usefixtures("_in_a_worker")
@pytest.mark.parametrize("name", ["yields", "returns_rows"])
def test_an_error_between_rows_hides_the_traceback(name: str) -> None:
    rows = getattr(Failing(), name)(InvalidArgument("wrong"))
    assert next(rows) == 1
    assert not is_hidden()
    with pytest.raises(InvalidArgument):
        next(rows)
    assert is_hidden()


@pytest.mark.usefixtures("_in_a_worker")
def test_a_single_ledger_error_is_unwrapped_from_its_groups() -> None:
    group = ExceptionGroup("nursery", [ExceptionGroup("nursery", [InvalidArgument("wrong")])])
    with pytest.raises(InvalidArgument, match="wrong"):
        Failing().reads(group)
    assert is_hidden()


@pytest.mark.usefixtures("_in_a_worker")
@pytest.mark.parametrize(
    "error",
    [
        ValueError("a mistake"),
        ExceptionGroup("two", [InvalidArgument("one"), ValueError("another")]),
        ExceptionGroup("one", [ValueError("a mistake")]),
    ],
)
def test_another_error_keeps_its_traceback(error: Exception) -> None:
    with pytest.raises(type(error)):
        Failing().reads(error)
    assert not is_hidden()


def test_outside_of_spark_nothing_is_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HIDE_VARIABLE, "")
    with pytest.raises(InvalidArgument):
        Failing().reads(InvalidArgument("wrong"))
    assert not is_hidden()


def test_results_are_not_changed() -> None:
    assert Failing().adds(1, two=2) == 3
    assert Failing.adds.__doc__ == "Adds."
