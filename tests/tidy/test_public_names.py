"""The names a package promises are there, though each is imported only when it is used."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

PACKAGES = ["ledger", "bookie", "stream"]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_there(package: str) -> None:
    module = importlib.import_module(package)
    assert module.__all__
    assert sorted(module._HOME) == sorted(module.__all__)
    assert all(getattr(module, name) is not None for name in module.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        module.nonsense  # noqa: B018


@pytest.mark.parametrize("package", PACKAGES)
def test_importing_a_package_loads_none_of_its_parts(package: str) -> None:
    """`ledgerstream --help` and a bookie's start wait for nothing they do not use."""
    program = (
        f"import sys, {package}; print([m for m in sys.modules if m.startswith('{package}.')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout.strip() == b"[]"
