"""No bytes that a peer sends end a bookie, exceed its memory limits or affect other peers: a sample
of the campaign `python -m tests.hostile`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.hostile.attacks import FRAMES, HTTP, TLS
from tests.hostile.campaign import run, shares, total

pytestmark = pytest.mark.system

REQUESTS = 6_000
HTTP_REQUESTS = 60


async def test_hostile_peers_harm_nobody_and_leave_nothing(tmp_path: Path) -> None:
    reports = await run(tmp_path, shares(REQUESTS, HTTP_REQUESTS), seed=1, is_checked=True)
    assert [failure for report in reports for failure in report.failures] == []
    looked_at = total(reports)
    assert looked_at[FRAMES] >= REQUESTS * 0.8
    assert looked_at[TLS] >= REQUESTS * 0.1
    assert looked_at[HTTP] >= HTTP_REQUESTS
    for report in reports:
        assert report.appends > 20, "the neighbour worked meanwhile"
        log = (tmp_path / report.name / "stderr").read_text()
        refusals = [line for line in log.splitlines() if "refused peer=" in line]
        assert refusals, "some requests must have been refused"
        assert all(re.search(r"cause=\S+", line) for line in refusals)
