"""Proposers: what writes candidate harnesses. `registry.open_proposer` finds one by name."""
