"""What a learner does in the protocol: a state machine without I/O, time or arrays.

It may import no torch, numpy, gRPC, asyncio or `time`, and of the worker only `link.messages`.

- exchange.py       the dispatch of inputs, and what the driver owes the machine
- validation.py     what shards say, checked before any other rule looks at it
- adoption.py       published values: candidates, adoption at a boundary, new bases
- joining.py        connecting, admission, refusals, reconnecting
- silence.py        shards that say nothing
- companions.py     what the registrar is sent beside values: the companion of the export
- reports.py        what the shards are told of this learner
- handover.py       captures and offers: answers to Calls, and the lock-step modes
- learner_state.py  all that is known: of the shards, of the clock, of this learner's own progress
- slice_state.py    one slice: its base, the work since, and what became of the tokens
- effects.py        what the rules ask the transport to do
"""
