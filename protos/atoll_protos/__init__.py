"""The contract of the three programs: what two of them must do or name alike.

Here belongs what would be a second home of a truth if one program kept it for itself: messages,
the run file, names, tables of codes and codecs, the layout of fragments, frames, and what every
process sets up first. Not here: rules of the protocol, clocks, disks, servers, Kubernetes.
Nothing here imports one of the three programs. Only `tensors` imports torch and only `arrays`
imports numpy; the operator's image has neither.

- v1/atoll.proto   the messages; the generated code stands next to it
- errors.py        errors of the user: field, problem, remedy
- names.py         slots, the registrar's shard, labels
- identity.py      who a process is, as its certificate says it
- credentials.py   certificate, key and authorities of a process, and what is wrong with them
- environment.py   the table of environment variables
- torchrun.py      torchrun's variables, with which the hosts of a learner meet
- addresses.py     host and port in one word, with an IPv6 address in brackets
- listening.py     sockets that listen on all addresses, and plain HTTP on them
- exits.py         the table of exit codes, and of the codes of refusals
- reading.py       files of a job as dataclasses, read strictly from JSON
- run.py           the run file: one job as its processes see it
- expected.py      the learners that a job has at present
- length.py        how long the job is, which may change while it runs
- schedule.py      when each fragment is due, for shards and learners alike
- means.py         the moving mean by which both sides measure times
- states.py        what shards and slots do, in the words that people see
- codecs.py        the table of codecs: names, numbers, sizes; no arithmetic
- tensors.py       tensor <-> bytes: the arithmetic of the codecs, on torch
- arrays.py        the same arithmetic with the same bits on numpy, for the transport process
- layout.py        which part of which tensor belongs to which slice
- parts.py         how a slice is divided, and which bytes a part has
- companion.py     what an export needs beside the values that travel, as it is sent
- frames.py        raw frames of the bulk stream
- gathering.py     transfers that come in parts over several lanes, put together
- channels.py      gRPC channels and servers as both ends make them
- diagnosis.py     why a shard cannot be reached although something answers
- deadline.py      a deadline that moves, for the event loop of either side
- allocator.py     the allocator, tuned before torch and grpc are imported
- logs.py          structured logs, one JSON object a line
"""
