"""The write-ahead log of a bookie.

journal: gathers, writes and syncs groups, and runs their callbacks.
reader: reads a journal before it runs.
replay: applies its frames to write caches and ledger states.
files: the files of one journal directory.
trimmer: trims the files that no directory needs.
page_cache_flush: syncs what was acknowledged without a sync.
end_marker: the file that records how far was acknowledged.
check: checks the journals of a stopped bookie.
metrics: what operators need to know of a journal.
"""
