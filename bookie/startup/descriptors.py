"""Raises the limit of open files of this process, and divides it.

The usual soft limit of 1024 is for programs that use select(); this process does not. The decision
is in `bookie.core.descriptors`.
"""

from __future__ import annotations

import logging
import resource
from dataclasses import replace
from typing import Final

from bookie.config import BookieConfig
from bookie.core.descriptors import DescriptorPlan, plan_descriptors

_log = logging.getLogger(__name__)

_UNLIMITED: Final = 1 << 20
"""What counts as the limit if there is none: more are never used."""


def raise_descriptor_limit() -> int:
    """Raises the soft limit of open files to the hard one, and returns what may be open now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError) as error:
            _log.warning("limit of open files not raised from=%d to=%d cause=%s", soft, hard, error)
    return _UNLIMITED if soft == resource.RLIM_INFINITY else soft


def settle_descriptors(config: BookieConfig) -> tuple[BookieConfig, DescriptorPlan]:
    """Returns the settings with as many connections as the process may have, and its plan. Logs a
    warning if those are fewer than `connections_max`.

    Raises InvalidArgument if the limit is too low for the journals and ledger directories.
    """
    limit = raise_descriptor_limit()
    plan = plan_descriptors(
        limit,
        connections_max=config.connections_max,
        journals=len(config.journal_directories),
        directories=len(config.ledger_directories),
    )
    most = plan.connections_max
    if most == config.connections_max:
        return config, plan
    _log.warning(
        "connections_max is %d, but the process may open %d files: it takes %d connections. Cure:"
        " raise the hard limit (`ulimit -Hn`, or LimitNOFILE of systemd), or lower connections_max",
        config.connections_max,
        limit,
        most,
    )
    per_peer = min(config.connections_per_peer_max, most)
    return replace(config, connections_max=most, connections_per_peer_max=per_peer), plan
