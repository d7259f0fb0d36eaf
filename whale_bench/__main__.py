"""`python -m whale_bench`, the same as the command `whale-bench`.

Not covered: anything else; see `cli.py`.
"""

from whale_bench.cli import main

if __name__ == "__main__":
    main()
