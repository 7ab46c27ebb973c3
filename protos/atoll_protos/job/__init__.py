"""What every process knows of a job.

- run_file         the run file: one job as its processes see it
- expected         the learners that a job has at present
- length           how long the job is, which may change while it runs
- schedule         when each fragment is due, for shards and learners alike
- layout           which part of which tensor belongs to which slice
- companion        what an export needs beside the values that travel, as it is sent
- shown_states     what shards and slots do, in the words that people see
- strict_json      files of a job as dataclasses, read strictly from JSON
"""
