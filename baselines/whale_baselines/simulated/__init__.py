"""A simulated learner behind the operators' protocols: schedules at paper scale in seconds.

A fixture. Nothing in here is a model or plays an environment, and no ranking takes it.
"""
