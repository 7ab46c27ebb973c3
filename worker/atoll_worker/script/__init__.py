"""What a Learner checks and takes over of the user's script, without knowing of the job.

- refusals.py     what a learner is not made for, and `step()` at the wrong places
- optimizers.py   looks through wrappers of optimizers, checks and follows them
- rates.py        learning-rate schedules that follow the job's tick
- termination.py  SIGTERM as an orderly end; why a learner leaves
"""
