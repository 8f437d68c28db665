"""A sample of the campaign of faults on real processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.system.healing.campaign import campaign

pytestmark = pytest.mark.system


def test_every_copy_is_there_again_after_the_faults(tmp_path: Path) -> None:
    assert campaign(tmp_path, bookies=4, faults=8, seed=18, pause_mean_s=0.7, fault_s_max=3.0) == []
