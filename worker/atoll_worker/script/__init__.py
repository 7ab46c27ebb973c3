"""What a Learner checks and takes over of the user's script, without knowing of the job.

- refusals.py     what a learner is not made for, at the start and while it trains
- optimizers.py   its optimizers, checked and followed; schedules that follow the job's tick
- termination.py  SIGTERM as an orderly end; why a learner leaves
"""
