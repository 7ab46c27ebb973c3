"""The files of a run folder.

log_files.py  the processes: their logs, through restarts, and how shards are reached
run_lock.py   who runs what is in the folder
run_files.py  writes and follows files, when the disk takes them
"""
