"""The harness operator: proposers write candidates, the archive keeps them, a rule accepts one.

`search.py` is the loop, `proposal.py` the contract between it and whoever proposes, `archive.py` what is
known, `acceptance.py` the rules.
"""
