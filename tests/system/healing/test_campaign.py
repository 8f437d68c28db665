"""A sample of the campaign of faults on real processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.effort import scaled
from tests.system.healing.campaign import campaign

pytestmark = pytest.mark.system


def test_every_copy_is_there_again_after_the_faults(tmp_path: Path) -> None:
    faults, fault_s_max = scaled(ci=8, night=12), float(scaled(ci=3, night=4))
    found = campaign(
        tmp_path, bookies=4, faults=faults, seed=18, pause_mean_s=0.7, fault_s_max=fault_s_max
    )
    assert found == []
