"""The documents of streams in the metadata store."""
