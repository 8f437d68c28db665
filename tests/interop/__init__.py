"""Tests against released Apache BookKeeper: its client, bookies and tools, over ZooKeeper."""
