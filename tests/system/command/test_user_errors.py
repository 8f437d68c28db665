"""Errors of users: each is answered in one line with cause and cure, and has its exit code.

tests/golden/user_errors.txt has them all; tests/system/command/user_errors.py says how to add one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.system.cluster import StandaloneCluster
from tests.system.command.user_errors import Surroundings, UserError, user_errors

USER_ERRORS = user_errors()
_REPR = re.compile(r"\b[A-Z]\w+\((?!s\))|<class |object at 0x")
"""How Python shows an object to a programmer: `Cookie(...)`."""


@pytest.fixture(scope="module")
def surroundings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Surroundings]:
    directory = tmp_path_factory.mktemp("files")
    cluster = StandaloneCluster(tmp_path_factory.mktemp("user-errors") / "cluster", None, ())
    cluster.start()
    yield Surroundings.prepare(cluster, directory)
    cluster.stop()


@pytest.mark.parametrize("case", USER_ERRORS, ids=[one.line for one in USER_ERRORS])
def test_each_error_of_a_user_gets_its_answer(case: UserError, surroundings: Surroundings) -> None:
    assert surroundings.answer_to(case.line) == case.answer


def test_there_are_many_each_answered_in_one_line() -> None:
    assert len(USER_ERRORS) >= 60
    assert len({case.line for case in USER_ERRORS}) == len(USER_ERRORS)
    for case in USER_ERRORS:
        assert case.answer.startswith(("[1] ledgerstream: ", "[2] ledgerstream: ")), case
        assert "\n" not in case.answer
        assert "Traceback" not in case.answer
        assert not _REPR.search(case.answer), case
