"""`atoll-worker launch`: starts the processes of one learner on this host, and ends as they do.

It is the agent of torchrun in this process, so all that torchrun understands holds: its options,
the variables PET_*, the meeting of several hosts. What torchrun lacks for a learner of a job:

- its exit code is that of the process that failed first, where torchrun's is always 1. Who starts
  learners must know whether another start can help (docs/operating.md, exit codes);
- a process that failed for good (64, 65) is not started again in place;
- SIGTERM reaches the processes themselves, which leave the job, and is waited for;
- the processes end with it, also when it is killed;
- every line of a log says whose it is where there are several.

Its files:

- command.py   the command line and the environment: what is started, and how often
- agent.py     torchrun's agent with these changes
- meeting.py    how the hosts of a learner meet
- lines.py     what the processes print, line by line
- health.py    what probes are answered: this host is not stopped
- ending.py    how the launcher itself ends
- outcome.py   which process has ended the others, and what the launcher exits with; pure
"""
