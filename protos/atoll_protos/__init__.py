"""The contract of the three programs: what two of them must do or name alike.

Not here: rules of the protocol, clocks, disks, servers, Kubernetes. Nothing here imports one of the
programs. Only `transfer.arrays` imports numpy, which the operator's image has not.

- v1/atoll.proto   the messages; the generated code stands next to it
- job/             what every process knows of a job: run file, layout, length, schedule
- transfer/        values as bytes, and bytes as frames of a stream
- network/         certificates, channels and addresses
- errors           errors of the user: field, problem, remedy; a peer's strings
- bounds           what each field of a message keeps to, whoever sends it
- documents        values of files and of the log as JSON, and back
- names            slots, the registrar's shard, labels
- environment      the tables of environment variables
- exits            the tables of exit codes and of refusals
- means            the moving mean by which both sides measure times
- allocator, logs  what a process sets up before all else
"""
