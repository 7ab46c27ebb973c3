"""The machine of `atoll join`.

joining.py      supervises its learners until the job is over
entering.py     how it becomes a machine of the job
credentials.py  the same for a job of a cluster, whose shards it asks
folder.py       what it keeps to be the same machine after a restart
learners.py     its learners as processes
hosts.py        how the machines of one learner meet
watching.py     asks the server how the job stands, and renews the certificate
"""
