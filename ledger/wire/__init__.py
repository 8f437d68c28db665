"""The wire protocols between clients and bookies, as bytes. Pure.

- `connection`: takes frames out of a byte stream without copying.
- `messages`: requests and responses, independent of the version.
- `v2`, `v2_status`: the binary protocol and its result codes.
- `v3`, `v3_forms`: the protobuf protocol, and its fields as tables.
"""
