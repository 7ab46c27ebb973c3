"""Settings of all tests."""

from hypothesis import settings

# The checks run on busy machines: a slow example is no failure.
settings.register_profile("atoll", deadline=None)
settings.load_profile("atoll")
