"""Consumers: durable cursors, and groups whose members share the partitions of a stream.

Records are handled at least once. Must never commit what was not handled, nor at the epoch of
another holder.

- assigned_partition.py: one partition of one member, from acquisition to release
- consumer.py: one member of a consumer group
- coordinator.py: decides with the other members who handles what
- cursor.py: a durable position, committed in the background
- delivery.py: what a consumer delivers
- groups.py: joins, lists, describes and deletes groups
- membership.py: keeps a member visible to the others
"""
