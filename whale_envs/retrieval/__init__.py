"""Retrieval over passages: `base.py` is the contract, the other modules are the backends.

Not covered: the corpora of a domain, see `whale_envs.search_qa`.
"""

from whale_envs.retrieval.base import Hit, Passage, Retriever

__all__ = ["Hit", "Passage", "Retriever"]
