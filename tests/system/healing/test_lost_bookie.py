"""Lost bookies of real clusters: a sample of `lost_bookie` with few ledgers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.mark.structures import ParameterSet  # has no public name

from tests.conftest import skip_without_zookeeper
from tests.effort import scaled
from tests.system.healing.lost_bookie import CASES, lose

pytestmark = pytest.mark.system

_LEDGERS = scaled(ci=300, night=3000)
_SLOW_BYTES_PER_S = 200_000
"""So that a bookie can return while its ledgers are being copied."""


def _worlds() -> Iterator[ParameterSet]:
    """Yields each case with each store of the metadata; a change tries each with one of them."""
    for case in CASES:
        is_zookeeper_tried = case in ("disk", "auditor")
        slow = [pytest.mark.slow]
        yield pytest.param(case, "sqlite", marks=slow if is_zookeeper_tried else [])
        marks = [pytest.mark.zookeeper, *([] if is_zookeeper_tried else slow)]
        yield pytest.param(case, "zookeeper", marks=marks)


@pytest.mark.parametrize(("case", "metadata"), list(_worlds()))
def test_all_copies_are_there_again(tmp_path: Path, case: str, metadata: str) -> None:
    if metadata == "zookeeper":
        skip_without_zookeeper()
    settings = {"autorecovery_copy_bytes_per_s_max": _SLOW_BYTES_PER_S} if case == "returns" else {}
    figures = lose(
        tmp_path,
        case,
        ledgers=_LEDGERS,
        metadata=metadata,
        delay_s=4,
        in_peace_s=3,
        **settings,
    )
    print(json.dumps(figures))
    # Lost bookies are down still; the one that returned is back.
    assert figures["exit_code"] == (0 if case == "returns" else 3), figures
