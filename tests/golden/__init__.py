"""Bytes made by others, which must stay readable and writable (see README.md)."""

from __future__ import annotations

import json
from pathlib import Path


def apache(name: str) -> bytes:
    """One sample of Apache BookKeeper's bytes by its name in apache.json."""
    path = Path(__file__).with_name("apache.json")
    samples: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))
    return bytes.fromhex(samples[name])
