"""Searches with the real engine, real environments, scripted models and scripted proposers."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path += [str(HERE), str(HERE.parent), str(HERE.parents[1] / "bench")]
