"""The columnar entry: records as the payload of one ledger entry (docs/formats.md).

- arrow.py: columns as pyarrow arrays
- columns.py: columns of byte strings and numbers
- compression.py: LZ4 and Zstandard, bounded
- encoder.py: records to bytes
- format.py: the fixed header, and the limits
- records.py: bytes to records and batches
- sizes.py: sizes of records in a batch
"""
