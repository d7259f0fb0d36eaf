"""The harness operator: proposers write candidates, the archive keeps them, a rule accepts one.

`proposal.py` is the contract between the search and whoever proposes.
"""
