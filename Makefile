PYTHON ?= python
RUN_ARGUMENTS ?= --model=LISASoft --dataset=ml-100k --epochs=10

.PHONY: install run test lint docs bench

install:
	$(PYTHON) -m pip install -e '.[dev]'

run:
	$(PYTHON) run_recbole_lisa.py $(RUN_ARGUMENTS)

test:
	$(PYTHON) -m pytest

lint:
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy

docs:
	$(PYTHON) -m sphinx -q -W --keep-going -c docs . build/docs

bench:
	python -m benchmarks step
	python -m benchmarks attention
