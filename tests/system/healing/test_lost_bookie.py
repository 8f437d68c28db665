"""Lost bookies of real clusters: a sample of `lost_bookie` with few ledgers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import skip_without_zookeeper
from tests.effort import scaled
from tests.system.healing.lost_bookie import CASES, lose

pytestmark = pytest.mark.system

_LEDGERS = scaled(ci=300, night=3000)
_SLOW_BYTES_PER_S = 200_000
"""So that a bookie can return while its ledgers are being copied."""


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    "metadata", ["sqlite", pytest.param("zookeeper", marks=[pytest.mark.zookeeper])]
)
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
