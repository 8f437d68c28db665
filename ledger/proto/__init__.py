"""Messages of Apache BookKeeper in protobuf: generated modules, as README.md says.

- `bookkeeper_protocol_pb2`: protocol v3. `data_formats_pb2`: metadata.
"""
