"""Room local."""
