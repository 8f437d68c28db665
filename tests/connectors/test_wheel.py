"""What is built and installed has the one module by which Spark finds the format by itself."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.tidy.checkout import PRODUCT, ROOT

pytestmark = [pytest.mark.system, pytest.mark.slow]

_TIMEOUT_S = 300

# What Spark does in a process of its own when the first format is looked up.
_LOOK_UP = """
import io, pickle, sys, warnings
warnings.simplefilter("ignore")  # other modules of this environment are looked at as well
from pyspark.serializers import read_int
from pyspark.sql.worker.lookup_data_sources import _main
out = io.BytesIO()
_main(None, out)
out.seek(0)
for _ in range(read_int(out)):
    name = out.read(read_int(out)).decode()
    pickled = out.read(read_int(out))
    if name == "ledgerstream":
        import pyspark_ledgerstream
        print(pyspark_ledgerstream.__file__)
        print(pickle.loads(pickled) is pyspark_ledgerstream.DefaultSource)
        print(len(pickled) < 200)
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the wheel has, built from a copy of the sources."""
    directory = tmp_path_factory.mktemp("wheel")
    sources = directory / "sources"
    sources.mkdir()
    for package in PRODUCT:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, sources / package, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE", "pyspark_ledgerstream.py"):
        shutil.copy(ROOT / name, sources / name)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index"]
    done = subprocess.run(
        [*command, "--no-build-isolation", "--wheel-dir", str(directory), str(sources)],
        capture_output=True, text=True, timeout=_TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = directory.glob("*.whl")
    target = directory / "installed"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    return target


def test_the_wheel_has_the_packages_and_one_module(installed: Path) -> None:
    tops = {path.name for path in installed.iterdir() if not path.name.endswith(".dist-info")}
    assert tops == {*PRODUCT, "pyspark_ledgerstream.py"}
    assert (installed / "connectors" / "spark" / "core" / "offsets.py").exists()
    assert (installed / "connectors" / "py.typed").exists()


def test_spark_finds_the_format_in_it(installed: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _LOOK_UP],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True, text=True, timeout=_TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    module, is_the_class, is_by_name = done.stdout.splitlines()
    assert Path(module) == installed / "pyspark_ledgerstream.py"
    assert is_the_class == "True"
    assert is_by_name == "True"
