"""The metadata store: where the documents of streams are stored, and the only ways to change them.

Every change compares versions. Must never overwrite a document blindly.

- cursors.py: cursors
- gone_streams.py: what is remembered of streams that are gone
- groups.py: consumer groups and their members
- pages.py: the older segments of streams, in immutable pages
- partitions.py: partitioned streams, and work on all of their partitions
- sinks.py: sinks, read, listed and forgotten
- streams.py: namespaces, streams and the names in the trash
"""
