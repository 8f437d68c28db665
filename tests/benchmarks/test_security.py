"""What the benchmark of security says about its rounds: ratios to the clear, and verdicts."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.security import _result, _Variant
from ledger.security_setup import SecurityDirectory


def variant(name: str, *rounds: float) -> _Variant:
    cpu_us = {kind: list(rounds) for kind in ("ledger_add", "append")}
    return _Variant(name, cpu_us=cpu_us | {"connection": [500.0], "idle": [40_000.0]})


@pytest.mark.parametrize(
    ("permitted", "verdict"), [(5.05, "met"), (5.2, "not distinguishable"), (6.0, "missed")]
)
def test_a_ratio_is_that_of_the_same_round_to_both_clusters_in_clear(
    permitted: float, verdict: str
) -> None:
    variants = [
        variant("clear", 4.8, 9.6, 4.8),  # the machine was busy in one of the rounds
        variant("again", 5.2, 10.4, 5.2),
        variant("tls", 6.0, 12.0, 9.0),
        variant("permitted", permitted, 2 * permitted, permitted),
    ]
    found = _result(variants, 100)
    assert found["append_clear_cpu_us"] == 5.0
    assert found["append_noise"] == 0.04
    assert found["append_tls_ratio"] == 1.2
    assert found["append_tls_ratios"] == "1.20 to 1.80"
    assert found["append_tls_aim"] == "1.6: met"
    assert found["append_permitted_aim"] == f"1.02: {verdict}"
    assert "append_tls_aim" not in _result(variants, 77)  # no aim for entries of that size


def test_each_variant_has_the_settings_that_it_is_named_for(tmp_path: Path) -> None:
    security = SecurityDirectory(tmp_path)

    def names(one: _Variant) -> set[str]:
        return set(one.bookie_settings(security, tmp_path))

    assert names(_Variant("clear")) == set()
    permitted = names(_Variant("permitted", is_permitted=True))
    assert permitted == {
        "permissions", "authentication_mechanisms", "credentials_file", "cluster_secret_file",
        "derived_keys_required",
    }  # fmt: skip
    encrypted = names(_Variant("tls", is_encrypted=True))
    assert {"tls_required", "tls_certificate_file", "tls_key_file", "tls_to_bookies"} <= encrypted
    assert not permitted & encrypted
    everything = _Variant("secure", is_encrypted=True, is_permitted=True, is_audited=True)
    assert names(everything) == permitted | encrypted | {"audit_file"}
