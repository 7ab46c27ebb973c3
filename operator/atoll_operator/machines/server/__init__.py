"""The machine of `atoll serve`.

serving.py           what its run and the machines tell each other
join_port.py         the service with which machines enter, renew and watch
job_now.py           how the job stands, as machines hear it, and what is heard of them
folder.py            what makes it the same server after a restart
job_certificates.py  the authority of the job in its folder, and what it issues
register.py          tokens and machines, as the folder keeps them; decides who enters
"""
