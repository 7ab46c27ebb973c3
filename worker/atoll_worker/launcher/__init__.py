"""`atoll-worker launch`: torchrun's agent, as a learner needs it (docs/learners.md).

- command.py      the command line and the environment: what is started, and how often
- agent.py        torchrun's agent with these changes
- rendezvous.py   how the hosts of a learner meet
- lines.py        what the processes print, line by line
- probes.py       what probes are answered: this host is not stopped
- exiting.py      how the launcher itself ends
- first_cause.py  which process has ended the others, and what the launcher exits with; pure
"""
