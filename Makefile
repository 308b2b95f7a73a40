# Everything starts from Python 3.11 (to 3.13) and make. Set PYTHON to choose another interpreter.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUNS := runs/quickstart

.PHONY: quickstart install check test test-slow test-sb3 test-trackers test-traffic test-notebook attack lint docs package bench clean

# Stamps stand for installed sets of packages; they are made anew when what is to be installed changes.
$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/core.stamp: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

# Extras by name: make install EXTRAS=mujoco,video. Torch is pinned, or pip would take a build with gigabytes of CUDA.
install: $(VENV)/core.stamp
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.$(if $(EXTRAS),[$(EXTRAS)])'

$(VENV)/test.stamp: $(VENV)/core.stamp
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test,dev]'
	touch $@

# SPACE from a shipped baseline that breaks the constraint, PCPO beside it at the trust region that is best for it, and a
# page that shows both.
quickstart: $(VENV)/core.stamp
	@rm -rf $(RUNS)
	$(BIN)/spacerl train point-circle --algorithm space --baseline reward --delta 0.01 --updates 80 --out $(RUNS)/space
	$(BIN)/spacerl train point-circle --algorithm pcpo --delta 0.01 --updates 80 --out $(RUNS)/pcpo
	$(BIN)/spacerl report $(RUNS)/space $(RUNS)/pcpo --out $(RUNS)/report.html --title "Quickstart: point circle"
	@echo "Open $(RUNS)/report.html in a browser."

# A process per core, up to four, each with whole files: most of a test's time is a compiler that uses one core.
PARALLEL := -n auto --maxprocesses 4 --dist loadfile

test: $(VENV)/test.stamp
	$(BIN)/python -m pytest $(PARALLEL)

test-slow: $(VENV)/test.stamp
	$(BIN)/python -m pytest -m slow $(PARALLEL)

# Baselines of Stable-Baselines3 and TorchScript, loaded for real, and the README and the tutorials walked with one; torch
# is large and not part of the other tests.
test-sb3: $(VENV)/test.stamp
	$(MAKE) install EXTRAS=sb3,torch
	$(BIN)/python -m pytest -m 'slow or not slow' tests/test_foreign_policies.py tests/test_readme.py tests/test_pages.py

# Weights & Biases and MLflow for real, offline.
test-trackers: $(VENV)/test.stamp
	$(MAKE) install EXTRAS=wandb,mlflow
	WANDB_MODE=offline $(BIN)/python -m pytest tests/test_trackers.py

# The traffic tasks with all of SUMO: also its programs that build networks. Every algorithm on both.
test-traffic: $(VENV)/test.stamp
	$(MAKE) install EXTRAS=traffic
	$(BIN)/python -m pytest tests/test_traffic.py -m 'slow or not slow'

# Runs killed at every file operation, damaged files, generated command lines, two writers, a full disk, orphans.
attack: $(VENV)/test.stamp
	$(BIN)/python benchmarks/attack.py

lint: $(VENV)/test.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

# The pages of docs/ with the Python reference, in site/; a warning is an error.
docs: $(VENV)/docs.stamp
	$(BIN)/mkdocs build --strict --quiet --site-dir site

$(VENV)/docs.stamp: $(VENV)/core.stamp
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	touch $@

# What is published: a wheel and a source archive in dist/, built, installed and tried.
package: $(VENV)/test.stamp
	$(MAKE) install EXTRAS=package
	$(BIN)/python -m build --no-isolation
	$(BIN)/python -m pytest -m slow tests/test_package.py

# The notebook, run from top to bottom.
test-notebook: $(VENV)/test.stamp
	$(MAKE) install EXTRAS=notebook
	$(BIN)/python -m pytest -m slow tests/test_package.py -k notebook

# What every change must pass.
check: lint test docs

bench: $(VENV)/test.stamp
	$(BIN)/python benchmarks/speed.py
	$(BIN)/python benchmarks/ant.py

clean:
	rm -rf $(VENV) runs build dist site *.egg-info src/*.egg-info
