"""Documents of the metadata store: immutable values, their legal changes, their JSON.

- cursors.py: cursors and their holders
- documents.py: kind, version and bounds that all documents share
- format.py: JSON of streams and namespaces
- groups.py: consumer groups and their assignment
- namespaces.py: policies of namespaces
- partitioned.py: partitioned streams
- streams.py: streams and their segments
"""
