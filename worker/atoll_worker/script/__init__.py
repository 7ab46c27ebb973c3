"""What a Learner checks and takes over of the user's script, without knowing of the job.

- refusals.py      what a learner is not made for
- optimizers.py    looks through wrappers of optimizers, checks and follows them
- misuse.py        notices `step()` at the wrong places of a script
- rates.py         learning-rate schedules that follow the job's tick
- termination.py   SIGTERM as an orderly end
- last_words.py    why a learner leaves, and what the kubelet is told of it
"""
