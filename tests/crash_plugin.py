"""Brings what processes of pytest-xdist counted of crash points to the one that prints it.

A plugin (`-p tests.crash_plugin`) of `tests/bookie/storage/crash_points.py`, in every process.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.crash_counts import SETTLED, TRIED


def pytest_sessionfinish(session: pytest.Session) -> None:
    # Any: xdist adds the attribute in its workers, and types neither side of it.
    output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["crash_points"] = [[*key, count] for key, count in TRIED.items()]
        output["crash_aftermaths"] = [[*key, count] for key, count in SETTLED.items()]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    output = getattr(node, "workeroutput", {})  # not there if it died
    for kind, operation, count in output.get("crash_points", []):
        TRIED[kind, operation] += count
    for kind, aftermath, count in output.get("crash_aftermaths", []):
        SETTLED[kind, aftermath] += count
