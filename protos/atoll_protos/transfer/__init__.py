"""Values as bytes, and bytes as frames of a stream.

- codecs           the table of codecs: names, numbers, sizes; no arithmetic
- arrays           the arithmetic of the codecs, on numpy, for shards and transport processes
- division         how a slice is divided, and which bytes a part has
- frames           raw frames of the bulk stream
- gathering        transfers that come in parts over several lanes, put together
"""
