"""Every setting and metric is written down, and what is written down is what the code does."""

from __future__ import annotations

import dataclasses

from bookie.config import BookieConfig
from tools.docs import apache_settings, configuration, metrics


def test_the_document_of_settings_is_up_to_date() -> None:
    found = configuration.DOCUMENT.read_text(encoding="utf-8")
    assert found == configuration.document(), "run `make docs`"


def test_the_document_of_metrics_is_up_to_date() -> None:
    assert metrics.DOCUMENT.read_text(encoding="utf-8") == metrics.document(), "run `make docs`"


def test_a_setting_of_apaches_has_one_counterpart_or_a_reason_for_none() -> None:
    named = [
        name
        for field in dataclasses.fields(BookieConfig)
        for name in apache_settings.apache_names(field.metadata["apache"])
    ]
    assert len(named) == len(set(named))
    assert not set(named) & set(apache_settings.WITHOUT), "take it out of tests/tidy"
    for name, reason in apache_settings.WITHOUT.items():
        assert reason.endswith("."), name
