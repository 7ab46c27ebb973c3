"""The messages, and the code that the pinned generator made from them; nothing by hand.

Regenerate after a change of atoll.proto; tests/unit/contract/test_generated_code_is_current.py
fails until it is done and says the command.

- atoll.proto       the messages, with their meaning
- atoll_pb2.py       messages and enums; atoll_pb2.pyi has their types
- atoll_pb2_grpc.py  stubs and servicers of the services; atoll_pb2_grpc.pyi has their types
"""
