"""A job on plain machines: `atoll serve` has its shards, and `atoll join` brings learners.

The two sides meet in the service Machines of v1/atoll.proto. A machine may also join a job whose
shards are in a cluster, with credentials that a person brings. gRPC and cryptography are imported
only where a command needs them.

server/           the machine of `atoll serve`
joined/           the machine of `atoll join`
looking/          a laptop with a token to look at the job, or to edit it
server_link.py    proves the server before anything is said to it, and speaks to it
sights.py         which files of a run folder may leave its machine
host_number.py    which machine of how many of its learner one is
token.py          the word that a person carries from one machine to another
brought.py        the folder that a person brings from a cluster to a machine
private_files.py  files and folders for this user alone, each written at once
"""
