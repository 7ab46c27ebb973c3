"""A job on plain machines: `atoll serve` has its shards, and `atoll join` brings learners.

The two sides meet in the service Machines of v1/atoll.proto. gRPC and cryptography are imported
only where a command needs them.

    serving.py           the machine of `atoll serve`: what its run and the machines tell each other
    join_port.py         the service with which machines enter, renew and watch
    server_folder.py     what makes it the same server after a restart
    job_certificates.py  the authority of the job in its folder, and what it issues
    register.py          tokens and machines, as the folder keeps them; decides who enters
    token.py             the word that a person carries from one machine to another
    joining.py           the machine of `atoll join`: supervises its learners until the job is over
    entering.py          how it becomes a machine of the job
    joined_folder.py     what it keeps to be the same machine after a restart
    learners.py          its learners as processes
    watching.py          asks the server how the job stands, and renews the certificate
    server_link.py       proves the server before anything is said to it, and speaks to it
    private_files.py     files and folders for this user alone, each written at once
"""
