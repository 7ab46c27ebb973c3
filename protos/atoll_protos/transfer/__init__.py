"""Values as bytes, and bytes as frames of a stream.

- codecs     the table of codecs: names, numbers, sizes; no arithmetic
- arrays     the arithmetic of the codecs, on numpy, for shards and transport processes
- frames     raw frames of the bulk stream
- gathering  a transfer that comes in stripes, over the lanes of a session
"""
