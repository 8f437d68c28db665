"""Against released Apache BookKeeper: its client, its bookies, its tools, over a real ZooKeeper."""
