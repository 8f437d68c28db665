"""The wheel has the module by which Spark finds the format by itself."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.tidy.checkout import PRODUCT
from tests.wheel import TIMEOUT_S, TOP_MODULES, build_wheel

pytestmark = [pytest.mark.system, pytest.mark.slow]

# As Spark does in a separate process when the first format is looked up.
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
    """Builds and installs the wheel; returns the folder."""
    directory = tmp_path_factory.mktemp("wheel")
    wheel = build_wheel(directory)
    target = directory / "installed"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    return target


def test_the_wheel_has_the_packages_and_two_modules(installed: Path) -> None:
    tops = {path.name for path in installed.iterdir() if not path.name.endswith(".dist-info")}
    assert tops == {*PRODUCT, *(f"{name}.py" for name in TOP_MODULES)}
    assert (installed / "connectors" / "spark" / "core" / "offsets.py").exists()
    assert (installed / "connectors" / "py.typed").exists()


def test_spark_finds_the_format_in_it(installed: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _LOOK_UP],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    module, is_the_class, is_by_name = done.stdout.splitlines()
    assert Path(module) == installed / "pyspark_ledgerstream.py"
    assert is_the_class == "True"
    assert is_by_name == "True"
