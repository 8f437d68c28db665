"""What ledgers, streams and bookies need of the machine: tasks, threads, sockets, settings.

- `audit_file`: a file of lines that is rotated.
- `background`: a nursery whose lone error is raised without an exception group.
- `bridge`: one trio loop in a thread, for callers that are threads or asyncio tasks.
- `concurrency`: the same work for many items, a bounded number at a time.
- `config`: typed settings from defaults, a file, the environment and flags.
- `drive`: runs a state machine that does no I/O of its own.
- `network`: non-blocking transports, and TCP.
- `parking`: how a task waits until another one wakes it.
- `private_files`: files and directories of their owner alone.
- `shared_loop`: the one background loop of a process.
"""
