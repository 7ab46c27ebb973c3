"""The processes of a run: started, watched, started again, stopped.

supervisor.py       starts processes, and starts them again when they end
child.py            one of them
process_reports.py  what is reported of processes that have ended, or start
giving_up.py        what the end of a process means
startable.py        whether a command can start at all, before anything is started
ports.py            ports on which processes can listen
log_keeper.py       the program that writes the log of a process
"""
