"""One learner: the public Learner, its transport process, models and data for the examples."""
