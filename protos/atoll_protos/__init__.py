"""The contract of the three programs: messages, run file, fragment layout, tensor <-> bytes."""
