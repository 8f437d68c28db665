"""What only the machine can tell, for the roots of processes and commands."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4


def boot_id() -> str:
    """Another one after each start of the machine; where nobody tells, after each call."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return str(uuid4())
