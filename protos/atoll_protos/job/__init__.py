"""What every process knows of a job.

- run_file  the run file, the learners of a job at present, strict JSON, states that people see
- schedule  when each fragment is due; how long the job is, which may change
- layout    which part of which tensor belongs to which slice
"""
