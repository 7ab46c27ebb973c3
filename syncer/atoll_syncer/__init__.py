"""One shard of the syncer: rules (pure), then shard, then the gRPC, disk and torch edges."""
