"""The site: static pages of the board, built from a folder of submissions.

    build(Path("leaderboard/submissions"), Path("site"))      # build.py

Everything a submission says is text of someone unknown: templates escape all of it, characters that hide or
turn text are spelt out, and each page's policy lets no script run but its own (`templates.py`).
"""
