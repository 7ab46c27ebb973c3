"""A manifest becomes a running job: spec and plan (pure), then one of two executors."""
