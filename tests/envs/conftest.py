"""Property tests draw the same cases every time, and leave nothing on disk."""

from hypothesis import settings

settings.register_profile("whale", derandomize=True, deadline=None, database=None)
settings.load_profile("whale")
