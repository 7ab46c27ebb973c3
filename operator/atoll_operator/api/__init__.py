"""The API: one definition of every field of a job, from which everything else derives.

All of it is pure: no clock, network, disk or process, and neither executor is imported.

    job/      what a manifest says
    status/   what a status says, and why
    crd.py    the CustomResourceDefinition, made from the models
"""
