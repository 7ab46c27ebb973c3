"""The messages, and the code that the pinned generator made from them; nothing by hand.

Regenerate after a change of atoll.proto; tests/unit/contract/test_generated_code_is_current.py
fails until it is done and says the command.

- atoll.proto       the messages, with their meaning
- atoll_pb2.py      messages, enums and services; atoll_pb2.pyi has their types
"""
