"""A manifest becomes a running job: spec, plan and conditions (pure), then one of two executors."""
