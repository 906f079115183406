# make tour: the whole walkthrough, headless, into runs/<stamp>/index.html
# make test: the tests        make lab: JupyterLab on notebook 01
# PYTHON=/that/python uses an interpreter that brings its own torch, vLLM and ROCm or CUDA packages.
# Without it, the one that .venv was made with, else python3.
PYTHON ?= $(or $(shell cat .venv/made_by 2>/dev/null),python3)
BIN := .venv/bin
JOBS ?= 2

.PHONY: setup tour test coverage lab lint check figures clean

setup:
	@"$(PYTHON)" tools/setup_env.py $(SETUP)

tour: setup
	@$(BIN)/latent-moe tour $(TOUR)

test: setup
	@$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup -m "not slow and not browser and not gpu and not rocm" $(TESTS)

# The tests again with every line counted; below pyproject's fail_under it fails.
coverage: setup
	@$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup -m "not slow and not browser and not gpu and not rocm" --cov --cov-report=term:skip-covered $(TESTS)

# Copies are opened, in runs/lab/notebooks, so that running a notebook changes no tracked file; their links lead to the
# checkout's files. A copy that is there stays as it is.
# The address that it prints opens notebook 01 too: on a machine without a browser that is the only way in.
# In a container one is often root, which Jupyter refuses unless told. No question about Jupyter's news.
AS_ROOT = $(if $(filter 0,$(shell id -u)),--allow-root)
QUIET = --LabApp.news_url=None --LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate
lab: setup
	@mkdir -p runs/lab/notebooks && for file in notebooks/*.*; do [ -e "runs/lab/$$file" ] || cp "$$file" runs/lab/notebooks/; done
	@ln -sfn ../../profiles runs/lab/profiles && ln -sfn ../../latent_moe runs/lab/latent_moe
	@LATENT_MOE_RUN="$(CURDIR)/runs/lab" $(BIN)/jupyter lab --LabApp.default_url=/lab/tree/runs/lab/notebooks/01_latent_moe.ipynb $(AS_ROOT) $(QUIET) $(LAB)

lint: setup
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/deptry .

# README's figure, from a recording.
figures: setup
	@$(BIN)/python -m latent_moe.lab.plots.layer_plots

# Everything that continuous integration runs after the set-up.
check: lint test
	@$(BIN)/python -m pytest -m "browser or slow" $(TESTS)

clean:
	rm -rf runs build *.egg-info .pytest_cache .mypy_cache .ruff_cache
