"""What a learner does in the protocol: a state machine without I/O, time or arrays.

It may import no torch, numpy, gRPC, asyncio or `time`, and of the worker only `link.messages`.

- exchange.py       the dispatch of inputs; reports; published values; shards that are silent
- validation.py     what shards say, checked before any other rule looks at it
- joining.py        connecting, admission, refusals; captures and offers
- learner_state.py  all that is known of shards, slices and this learner; effects
"""
