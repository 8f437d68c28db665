"""The journals of a bookie, as its settings say."""

from __future__ import annotations

import random

from bookie.config import BookieConfig
from bookie.core.journal import CommitPolicy
from bookie.core.journal_flush import FlushPolicy
from bookie.storage.disk.disk import Disk
from bookie.storage.journal.journal import Journal


def journals_of(config: BookieConfig, disk: Disk, rng: random.Random) -> list[Journal]:
    """One for each journal directory, not replayed yet. `rng` gives the salts of their files."""
    policy = CommitPolicy(
        group_wait_ms=config.journal_group_wait_ms,
        group_bytes_max=config.journal_group_bytes_max,
        group_entries_max=config.journal_group_entries_max,
        flush_when_queue_empty=config.journal_flush_when_queue_empty,
    )
    flush = FlushPolicy(
        flush_interval_ms=config.journal_page_cache_flush_interval_ms,
        flush_bytes=config.journal_page_cache_flush_bytes,
    )
    return [
        Journal(
            disk,
            directory,
            rng=rng,
            policy=policy,
            file_bytes_max=config.journal_file_bytes_max,
            files_recycled=config.journal_files_recycled,
            backups_max=config.journal_backups_max,
            drops_cache=config.journal_drops_page_cache,
            flush=None if config.journal_sync_data else flush,
        )
        for directory in config.journal_directories
    ]
