"""Checks each behaviour of streams on each face, with real bookies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bookie.testing.in_process import InProcessCluster
from tests.stream.faces.suite import FACES, checks, program, run


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessCluster]:
    directory: Path = tmp_path_factory.mktemp("faces")
    with InProcessCluster(directory) as running:
        yield running


@pytest.mark.parametrize(("text", "name"), list(checks()))
@pytest.mark.parametrize("face", FACES)
def test_behaviour(face: str, text: str, name: str, cluster: InProcessCluster) -> None:
    check = getattr(program(text, face), name)
    run(face, cluster.uri, name.removeprefix("check_").replace("_", "-") + f".{face}", check)
