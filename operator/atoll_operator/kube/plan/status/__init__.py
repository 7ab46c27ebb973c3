"""What people and other programs see of a job: its status, Events, and which pods are Ready.

status       what the status says, and whether it is worth a write
starts       learners that start, for which nothing is degraded
problems     what is wrong with pods and claims, in sentences
region_counts  learners that are ready, and replacements, by region
events       Events of a job
readiness    which pods of learners are Ready: those in training
"""
