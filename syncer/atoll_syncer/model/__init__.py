"""Values of a shard: data, and functions that compute from data alone.

state      all that a shard knows, in parts that one module of rules writes each
roster     slots and sessions; rounds that are open; the clock
log        the entries of the durable log
history    what the entries of a log add up to
effects    what the rules ask of the driver; refusals with their remedies
"""
