"""`atoll-worker launch`: starts the processes of one learner on this host, and ends as they do.

It is the agent of torchrun in this process, which gives it the exit code of the process that failed
first, does not start again what failed for good (64, 65), waits for processes that leave the job
after SIGTERM, ends them with itself, and names the rank in each line of the log.

- command.py      the command line and the environment: what is started, and how often
- agent.py        torchrun's agent with these changes
- rendezvous.py   how the hosts of a learner meet
- lines.py        what the processes print, line by line
- probes.py       what probes are answered: this host is not stopped
- exiting.py      how the launcher itself ends
- first_cause.py  which process has ended the others, and what the launcher exits with; pure
"""
