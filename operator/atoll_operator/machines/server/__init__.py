"""The machine of `atoll serve`.

serving.py        what its run and the machines need of it; its folder
join_port.py      the call with which machines enter; wrong tokens
certificates.py   the authority of the job, and what it has issued
register.py       tokens and machines, as the folder keeps them; decides who enters
"""
