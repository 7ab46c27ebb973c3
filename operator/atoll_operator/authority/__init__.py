"""Certificates of a job: values in, values out; no Secret, no clock.

job_authority.py   the authority of a job, its successors, and the certificates that it issues
"""
