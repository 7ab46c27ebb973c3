"""The machine of `atoll serve`.

serving.py           what its run and the machines tell each other
join_port.py         the service for machines, and for people who look and change
job_now.py           how the job stands, as machines hear it, and what is heard of them
looking.py           what a token to look shows
file_sights.py       files of the run folder for who looks, and what is appended to them
changing.py          what a person decides of a run in a folder of this machine
attempts.py          how often an address may try a name with a wrong secret
folder.py            what makes it the same server after a restart
job_certificates.py  the authority of the job in its folder, and what it issues
register.py          tokens and machines, as the folder keeps them; decides who enters
"""
