"""Own agents: any Python callable or class, or any process that speaks JSON lines, played as it is.

`names.py` reads `agent:…` and `process:…`; `host.py` runs them; docs/agents.md is for their authors.
"""
