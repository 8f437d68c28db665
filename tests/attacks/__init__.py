"""Attacks that once worked, a file per kind, on clusters of real processes (docs/testing.md).

- clusters.py: the clusters that are attacked, and their users
- attackers.py: who attacks, and how connections are made and held
"""
