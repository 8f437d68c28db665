"""The interface to disks, and its form on real file systems.

disk: the protocols of disks and files.
real_disk: a real file system, called in threads.
read_only_disk: the same for tools that change nothing.
reads: reads around the page cache, or through it.
writes: writes around the page cache.
threads: threads that make blocking calls.
reserved_space: a reserve that is given up when a write needs it.
"""
