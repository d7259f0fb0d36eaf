"""Training and search baselines over one pair of operators.

Holds nothing yet: the weight operator, the harness operator and the recipes land here.
"""
