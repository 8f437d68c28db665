"""Files get the descriptors that they need, and connections the rest."""

from __future__ import annotations

import pytest

from bookie.core.descriptors import (
    CONNECTIONS_MIN,
    FIXED,
    HTTP,
    INDEX_FILES_MAX,
    LOGS_OPEN_MAX,
    PER_JOURNAL,
    PER_LOG,
    plan_descriptors,
)
from ledger.errors import InvalidArgument


def test_with_many_descriptors_nothing_is_restricted() -> None:
    plan = plan_descriptors(1 << 20, connections_max=2000, journals=64, directories=64)
    assert plan.connections_max == 2000
    assert plan.index_files_max == INDEX_FILES_MAX
    assert plan.logs_open_max == LOGS_OPEN_MAX


@pytest.mark.parametrize("directories", [1, 2, 8, 64])
@pytest.mark.parametrize("connections_max", [10, 2000])
def test_the_sum_never_exceeds_the_limit(connections_max: int, directories: int) -> None:
    journals, refused, planned = directories, 0, 0
    for limit in [*range(64, 9000, 37), 65536]:
        try:
            plan = plan_descriptors(
                limit,
                connections_max=connections_max,
                journals=journals,
                directories=directories,
            )
        except InvalidArgument:
            assert not planned, "a higher limit is never worse"
            refused += 1
            continue
        planned += 1
        files = plan.index_files_max + plan.logs_open_max * PER_LOG
        fixed = FIXED + HTTP + PER_JOURNAL * journals
        assert plan.connections_max + directories * files + fixed <= limit
        assert min(CONNECTIONS_MIN, connections_max) <= plan.connections_max <= connections_max
    assert refused
    assert planned


def test_too_few_descriptors_are_refused_with_the_number_needed() -> None:
    with pytest.raises(InvalidArgument, match=r"may open 100 files, but 1 journals and 1 ledger"):
        plan_descriptors(100, connections_max=2000, journals=1, directories=1)
