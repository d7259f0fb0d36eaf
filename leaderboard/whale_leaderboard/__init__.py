"""The accounting standard, submissions and their verification, the board.

    whale-leaderboard verify entry.tar.gz

docs/budget.md says what counts, docs/leaderboard.md how an entry is packed, verified and ranked.
"""
