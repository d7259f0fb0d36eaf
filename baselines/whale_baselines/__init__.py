"""Training and search baselines over one pair of operators.

Holds the weight operator so far: `weight_run.py` runs it from a file, `rsft_loop.py` is a step,
`trainer.py` the contract of an update and `rsft.py` the update. The harness operator and the recipes
land here, too.
"""
