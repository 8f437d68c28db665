"""What admits a process of Spark: its files, wherever Spark has put them, and its environment."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkFiles

from connectors.spark.client.client_cache import cached_cluster
from connectors.spark.client.security import client_options, local_path
from connectors.spark.core.cluster_access import ClusterAccess
from ledger.credentials import read_credentials
from ledger.errors import InvalidArgument

CLUSTER = "zk://host:2181/ledgers"
PASSWORD = "not-to-be-shown"


@pytest.fixture
def distributed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which Spark has put a worker's files."""
    folder = tmp_path / "userFiles"
    folder.mkdir()
    monkeypatch.setattr(SparkFiles, "_root_directory", str(folder))
    monkeypatch.setattr(SparkFiles, "_is_running_on_worker", True)
    return folder


def put(path: Path, mode: int = 0o711) -> Path:
    """Writes a file of credentials; the mode is what Spark makes of 0600."""
    path.write_text(f'user = "ann"\npassword = "{PASSWORD}"\ntls = "start_tls"\n')
    path.chmod(mode)
    return path


def access(**settings: str) -> ClusterAccess:
    return ClusterAccess(CLUSTER, tuple(settings.items()))


def test_a_file_that_spark_has_distributed_is_found_by_its_name(distributed: Path) -> None:
    path = put(distributed / "jobs.toml")
    options = client_options(access(credentials_file="jobs.toml", tls_ca_file="/etc/ca.pem"), {})
    assert options.credentials_file == str(path)
    assert (options.tls, options.tls_ca_file) == ("start_tls", "/etc/ca.pem")
    assert read_credentials(options.credentials_file).user == "ann"


def test_it_is_found_where_spark_names_a_folder_below(
    distributed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = put(distributed / "jobs.toml")
    monkeypatch.setattr(SparkFiles, "_root_directory", str(distributed / "streaming_job"))
    assert local_path("jobs.toml") == str(path)


def test_a_relative_root_is_that_of_an_executor(
    distributed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = put(distributed / "jobs.toml")
    monkeypatch.chdir(distributed)
    monkeypatch.setattr(SparkFiles, "_root_directory", ".")
    assert local_path("jobs.toml") == str(path)


def test_a_copy_that_others_can_read_is_refused(distributed: Path) -> None:
    put(distributed / "jobs.toml", 0o755)
    with pytest.raises(InvalidArgument, match="mode 0755: others can read"):
        client_options(access(credentials_file="jobs.toml"), {})


def test_a_file_that_is_nowhere_is_an_error_with_the_cure(distributed: Path) -> None:
    with pytest.raises(InvalidArgument, match=rf"looked in {distributed}\). Cure: .*--files"):
        client_options(access(credentials_file="jobs.toml"), {})


def test_without_a_session_only_paths_are_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkFiles, "_sc", None)
    with pytest.raises(InvalidArgument, match="this process has none"):
        local_path("jobs.toml")
    assert local_path("/jobs.toml") == "/jobs.toml"


def test_the_environment_counts_if_no_option_says_anything(tmp_path: Path) -> None:
    path = str(put(tmp_path / "jobs.toml"))
    options = client_options(access(), {"LEDGERSTREAM_CREDENTIALS": path}, batch_read_bytes=1000)
    assert (options.credentials_file, options.tls) == (path, "start_tls")
    assert options.batch_read_bytes == 1000
    assert client_options(access(tls="off"), {}).credentials_file == ""


@pytest.mark.parametrize("name", ["credentials_file", "cluster_secret_file"])
def test_what_is_sent_to_executors_has_the_name_of_a_file_alone(tmp_path: Path, name: str) -> None:
    path = str(put(tmp_path / "jobs.toml"))
    settings: dict[str, Any] = {name: path}
    cluster = cached_cluster(access(**settings))
    sent = pickle.dumps(cluster)
    assert path.encode() in sent
    assert PASSWORD.encode() not in sent
    assert pickle.loads(sent) is cluster
    assert cached_cluster(CLUSTER) is not cluster
