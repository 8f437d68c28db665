"""Documents of the metadata store: immutable values, their legal changes, their JSON.

- cursors.py: cursors and their holders
- documents.py: kind, version and bounds that all documents share
- format.py: JSON of streams and namespaces
- groups.py: consumer groups and their assignment
- namespaces.py: policies of namespaces
- page_format.py: bytes of pages, and which pages a stream makes
- pages.py: the older segments of a stream, in pages
- partitioned.py: partitioned streams
- segments.py: one segment, and a run of them in short
- streams.py: streams and their segments
"""
