"""`atoll-worker launch`: torchrun, with a rendezvous and exit codes of ours (docs/learners.md).

- launch.py   the command line, the starts of torchrun
- probes.py   the answer to probes, before torch is imported
- meeting.py  how hosts meet: a rendezvous of torchrun; the ranks of this host
"""
