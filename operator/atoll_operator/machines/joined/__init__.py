"""The machine of `atoll join`.

joining.py       its passes, until the job is over
entering.py      which machine it is: by a token, by brought credentials, or as it was before
watching.py      how the job stands; renews the bundle
server_link.py   proves the server of a token, and calls it
learners.py      its learners as processes, and where several hosts of one meet
"""
