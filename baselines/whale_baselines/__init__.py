"""Training and search baselines over one pair of operators.

`alternate.py` is the loop of every method and `schedule.py` what drives it; `recipes.py` reads what a run
is, `plan.py` says what it takes. The weight operator is `rsft_loop.py` with `trainer.py`, the contract of an
update, and `rsft.py`, the update; the harness operator is in `search/`. `simulated/` is a fixture of both.
"""
