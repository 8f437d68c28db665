"""The file with the secrets of a cluster: where it is named, and that it is its owner's alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledger.core.ledger_keys import NO_KEYS
from ledger.errors import InvalidArgument
from ledger.metastore.cluster_secret import load_keys

SECRET = b"0123456789abcdef" * 4


def _file(directory: Path, data: bytes = SECRET, mode: int = 0o600) -> str:
    path = directory / "secret"
    path.write_bytes(data)
    path.chmod(mode)
    return str(path)


def test_secrets_come_from_the_option_or_the_environment(tmp_path: Path) -> None:
    path = _file(tmp_path)
    variable = {"LEDGERSTREAM_CLUSTER_SECRET_FILE": path}
    assert load_keys("", {}) is NO_KEYS
    for keys in (load_keys(path, {}), load_keys("", variable)):
        assert keys.new_key(7, {})[0] == b"derived:8a0186fd6c715669"
    with pytest.raises(InvalidArgument):
        load_keys(f"{path}-missing", variable)


def test_a_secret_that_others_can_read_is_refused_unquoted(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"mode 0644: others .* the secret of a") as caught:
        load_keys(_file(tmp_path, mode=0o644), {})
    assert SECRET.decode() not in str(caught.value)
