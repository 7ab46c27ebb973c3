"""The machine of `atoll serve`.

serving.py        what its run and the machines need of it; its folder
join_port.py      the call with which machines enter; wrong tokens
register.py       tokens, machines and the authority, as the folder keeps them; decides who enters
"""
