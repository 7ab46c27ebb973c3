"""Values of a shard: data, and functions that compute from data alone. Only `slices` needs numpy.

state        all that a shard knows, in parts that one module of rules writes each
state_parts  these parts
log          the entries of the durable log
documents    entries and histories as plain JSON values, and back
history      what the entries of a log add up to
checkpoint   what is known of the checkpoint with which a run begins
effects      what the rules ask of the driver; refusals with their remedies
roster       slots and sessions: who is connected, and what each slot does
training     the slots that are Training, kept from input to input
round        one attempt to merge one slice: when it closes, its grace, its momentum
clock        the job's clock as one shard counts it
recovery     what a shard has lost, and who may give it back
slices       the tensors of one slice between two commits
"""
