"""Looking at runs: a page that needs nothing but a browser, and a server for runs that are large.

`index.py` reads a run once and remembers where each rollout stands; `data.py` makes of it what a page
shows of a run, `replay.py` and `board.py` what it shows of one rollout; `page.py` puts these into one
HTML file, `server.py` answers for them piece by piece. `static/` holds the page itself.
"""
