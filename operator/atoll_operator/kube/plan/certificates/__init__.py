"""Which certificates a job has, and what is to be made of them now.

issuing         where the syncer is: one for each process, made here or by cert-manager
region_secret   the Secret that a person carries to a cluster without the syncer
"""
