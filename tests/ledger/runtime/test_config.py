"""Settings come from four sources, in order, and no invalid one is ignored."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from bookie.config import BookieConfig, load_bookie_config
from ledger.errors import InvalidArgument
from ledger.runtime.config import setting, settings_table

ROOT = Path(__file__).parents[3]
REQUIRED = {
    "metadata_uri": "memory:",
    "journal_directories": ["/j"],
    "ledger_directories": ["/l"],
}


def loaded(**flags: object) -> BookieConfig:
    return load_bookie_config(None, {}, {**REQUIRED, **flags})


def test_flags_override_environment_file_and_defaults_in_this_order(tmp_path: Path) -> None:
    file = tmp_path / "b.toml"
    file.write_text(
        'metadata_uri = "memory:"\njournal_directories = ["/j"]\nledger_directories = ["/l"]\n'
        "port = 1\nconnections_max = 1\nlong_polls_max = 1\n"
    )
    environment = {"LEDGERSTREAM_PORT": "2", "LEDGERSTREAM_CONNECTIONS_MAX": "2", "PATH": "/bin"}
    config = load_bookie_config(file, environment, {"port": 3, "bookie_id": None})
    assert (config.port, config.connections_max, config.long_polls_max) == (3, 2, 1)
    assert config.checkpoint_interval_ms == 10_000
    assert config.journal_directories == ("/j",)


def test_the_environment_is_text_for_every_type() -> None:
    environment = {
        "LEDGERSTREAM_METADATA_URI": "sqlite:///c.db",
        "LEDGERSTREAM_JOURNAL_DIRECTORIES": "/a",
        "LEDGERSTREAM_LEDGER_DIRECTORIES": " /b ,",
        "LEDGERSTREAM_JOURNAL_GROUP_WAIT_MS": "0.5",
        "LEDGERSTREAM_JOURNAL_FLUSH_WHEN_QUEUE_EMPTY": "false",
        "LEDGERSTREAM_CLUSTER": "a client's",
        "LEDGERSTREAM_CONTEXT": "a client's, too",
    }
    config = load_bookie_config(None, environment, {})
    assert config.ledger_directories == ("/b",)
    assert config.journal_group_wait_ms == 0.5
    assert config.journal_flush_when_queue_empty is False


def test_an_unknown_key_names_its_source_and_the_nearest_known_one(tmp_path: Path) -> None:
    file = tmp_path / "b.toml"
    file.write_text("write_cache_byte = 5\n")
    with pytest.raises(InvalidArgument, match=r"b\.toml.*write_cache_byte:.*write_cache_bytes\?"):
        load_bookie_config(file, {}, REQUIRED)
    with pytest.raises(InvalidArgument, match=r"LEDGERSTREAM_PROT: did you mean port\?"):
        load_bookie_config(None, {"LEDGERSTREAM_PROT": "1"}, REQUIRED)
    with pytest.raises(InvalidArgument, match="flags: unknown setting hots"):
        loaded(hots="x")
    with pytest.raises(InvalidArgument, match="known are metadata_uri"):
        loaded(zzzzzz=1)


def test_errors_about_wrong_types_name_the_setting_and_the_value(tmp_path: Path) -> None:
    file = tmp_path / "b.toml"
    file.write_text('port = "3181"\n')
    with pytest.raises(InvalidArgument, match=r"port = '3181' is wrong: Expected `int`"):
        load_bookie_config(file, {}, REQUIRED)
    with pytest.raises(InvalidArgument, match="environment: port = 'many'"):
        load_bookie_config(None, {"LEDGERSTREAM_PORT": "many"}, REQUIRED)


def test_missing_settings_are_listed_with_the_cure() -> None:
    with pytest.raises(
        InvalidArgument,
        match=r"missing settings: journal_directories, ledger_directories\. Cure: give them in a "
        r"TOML file, or in the environment \(LEDGERSTREAM_JOURNAL_DIRECTORIES, LEDGERSTREAM_LED",
    ):
        load_bookie_config(None, {}, {"metadata_uri": "memory:"})


def test_sizes_and_durations_have_units_if_they_are_text(tmp_path: Path) -> None:
    file = tmp_path / "b.toml"
    file.write_text(
        'write_cache_bytes = "64MB"\ncheckpoint_interval_ms = "10s"\n'
        'journal_group_wait_ms = "3ms"\nscrub_bytes_per_s = "2 MiB/s"\n'
    )
    environment = {"LEDGERSTREAM_ENTRY_LOG_BYTES_MAX": "1GiB"}
    config = load_bookie_config(file, environment, REQUIRED)
    assert config.write_cache_bytes == 64_000_000
    assert config.checkpoint_interval_ms == 10_000
    assert config.journal_group_wait_ms == 3.0
    assert config.scrub_bytes_per_s == 2 << 20
    assert config.entry_log_bytes_max == 1 << 30


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            'write_cache_bytes = "64 megs"',
            r"write_cache_bytes = '64 megs' is wrong: size '64 megs'",
        ),
        ('checkpoint_interval_ms = "soon"', r"is wrong: duration 'soon': write 7d"),
        ('checkpoint_interval_ms = "99999999999d"', r"is wrong: duration .* is longer than"),
        ('connections_max = "5k"', r"connections_max = '5k' is wrong: Expected `int`"),
    ],
)
def test_wrong_units_are_refused_with_the_setting(tmp_path: Path, line: str, message: str) -> None:
    file = tmp_path / "b.toml"
    file.write_text(line)
    with pytest.raises(InvalidArgument, match=message):
        load_bookie_config(file, {}, REQUIRED)


def test_names_of_apache_bookkeeper_are_translated(tmp_path: Path) -> None:
    apache = {
        name: field.name
        for field in dataclasses.fields(BookieConfig)
        for name in field.metadata["apache"].split(", ")
        if name
    }
    assert apache["bookiePort"] == "port"
    for theirs, ours in apache.items():
        file = tmp_path / "b.toml"
        file.write_text(f"{theirs} = 1\n")
        with pytest.raises(InvalidArgument, match=rf"{theirs} is {ours} here"):
            load_bookie_config(file, {}, REQUIRED)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"cannot read .*none\.toml: No such file"):
        load_bookie_config(tmp_path / "none.toml", {}, REQUIRED)
    broken = tmp_path / "broken.toml"
    broken.write_text("port = \n")
    with pytest.raises(InvalidArgument, match=r"broken\.toml is not TOML"):
        load_bookie_config(broken, {}, REQUIRED)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            {"journal_directories": ["/a", "/b", "/a/"]},
            "'/a/' in journal_directories is already named in",
        ),
        (
            {"journal_directories": [f"/{n}" for n in range(65)]},
            "names 65 directories: give 1 to 64",
        ),
        ({"ledger_directories": []}, "names 0 directories"),
        ({"ledger_directories": [" "]}, "empty path"),
        ({"ledger_directories": ["/j"]}, "is already named in journal_directories"),
        (
            {"ledger_directories": [f"/{n}" for n in range(7)]},
            "at least 14 times frame_bytes_max.*7 ledger directories share it",
        ),
        ({"host": "0.0.0.0"}, "set advertised_host"),
        ({"port": 65536}, "at most 65535"),
        ({"port": -1}, "port is -1"),
        ({"write_cache_bytes": 6 << 20}, "at least 2 times frame_bytes_max"),
        ({"journal_queue_bytes_max": 6 << 20, "journal_group_bytes_max": 7 << 20}, "journal_group"),
        ({"checkpoint_interval_ms": 0}, "checkpoint_interval_ms is 0, must be at least 1"),
        ({"journal_group_wait_ms": float("nan")}, "journal_group_wait_ms is nan"),
        ({"metadata_root": "ledgers"}, "must be like /ledgers"),
        ({"metadata_uri": "zk://h:0/ledgers"}, "port is not in 1..65535"),
    ],
)
def test_contradictions_are_refused(flags: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        loaded(**flags)


def test_the_id_follows_from_what_clients_connect_to() -> None:
    assert loaded().id_of(4000) == "127.0.0.1:4000"
    public = loaded(host="0.0.0.0", advertised_host="b1")
    assert (public.id_of(3181), public.address(3181)) == ("b1:3181", ("b1", 3181))
    assert loaded(bookie_id="seven").id_of(1) == "seven"


def test_the_root_follows_from_the_address_unless_it_is_given() -> None:
    assert loaded().ledgers_root == "/ledgers"
    assert loaded(metadata_uri="zk+flat://h/a/b/mine").ledgers_root == "/mine"
    assert loaded(metadata_uri="zk://h/a", metadata_root="/x/y").ledgers_root == "/x/y"


def test_the_documentation_has_the_current_table_of_settings() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert settings_table(BookieConfig) in text


def test_every_setting_has_a_reason_of_one_or_two_sentences() -> None:
    for field in dataclasses.fields(BookieConfig):
        assert field.metadata["reason"].endswith("."), field.name
        assert field.metadata["reason"].count(". ") <= 1, field.name


@dataclasses.dataclass(frozen=True)
class _Sizes:
    size: int = setting(3 << 20, unit="bytes", apache="", reason="")
    odd: int = setting((1 << 20) + 1, unit="bytes", apache="", reason="")
    day: int = setting(86_400_000, unit="ms", apache="", reason="")
    many: int = setting(4096, unit="entries", apache="", reason="")


def test_only_bytes_are_shown_in_binary_units() -> None:
    shown = [line.split(" | ")[1] for line in settings_table(_Sizes).splitlines()[2:]]
    assert shown == ["3145728 (3 MiB)", "1048577", "86400000", "4096"]
