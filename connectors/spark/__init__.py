"""Streams as a Spark source and sink."""
