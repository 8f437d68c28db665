"""The metadata store in one SQLite file, shared by the processes of one machine.

- `batching`: joins the calls of many tasks to one visit of a thread.
- `connection`: checks, creates and opens the file, and translates SQLite's errors.
- `liveness`: whether another process is gone, and which sessions have expired.
- `notices`: what the system reports of changes and ends of other processes.
- `snapshot`: reads the values of all watched nodes at one moment.
- `store`: `SqliteStore`, the driver: threads, session.
- `tree`: `SqliteTree`, the blocking half: tables, changes, sessions.
- `watches`: what is watched, and how changes are noticed.
"""
