"""What would make a comparison dishonest, each on a small example: the same simulated session with one thing changed.

The session is synthetic: three pairs, the candidate 10 % faster, hardly any noise. Untouched, the table says improved.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pandas as pd

from latent_moe.lab.results import PRIMARY, Results, Run
from latent_moe.lab.results.comparison import Row, compare
from latent_moe.lab.results.simulate import Noise, session

_QUIET = Noise(0.004, 0.004, 0.002, 0.002, source="example")
_REQUESTS = 40
FAULTY_COLUMN, FAULTY_ARM = "output_tokens", "candidate"


def guard_examples() -> list[dict]:
    """One dict per example: `example` (what was changed), `metric`, `delta_pct` (None where refused), `verdict`, `reason`,
    `looked_like_pct` (the delta that the shown means would have suggested; None where a mean is absent).
    """
    return [_judge(name, change, metric) for name, (change, metric) in _EXAMPLES.items()]


def runs_with_a_fault() -> pd.DataFrame:
    """Notebook 05's task: the same simulated session, one row a run, in which FAULTY_COLUMN gives FAULTY_ARM away."""
    change, _ = _EXAMPLES["the candidate's answers are shorter"]
    runs = [_counted(run) for run in session(_QUIET, 3, 10.0, np.random.default_rng(0)).runs]
    return pd.DataFrame([_shown(run) for run in change(runs)])


def _shown(run: Run) -> dict:
    counts = ("arm", "isl", "osl", "completed", "failed", "input_tokens", "output_tokens")
    rates = {name: round(run.values[name], 2) for name in (PRIMARY, "mean_tpot_ms")}
    return {name: getattr(run, name) for name in counts} | rates


def _judge(name: str, change: Callable[[list[Run]], list[Run]], metric: str) -> dict:
    runs = [_counted(run) for run in session(_QUIET, 3, 10.0, np.random.default_rng(0)).runs]
    row = next(row for row in compare(Results(runs=change(runs))).rows if row.metric == metric)
    return {
        "example": name,
        "metric": metric,
        "delta_pct": row.delta_pct,
        "verdict": row.verdict,
        "reason": row.reason,
        "looked_like_pct": _suggested(row),
    }


def _suggested(row: Row) -> float | None:
    return None if row.baseline is None or row.candidate is None else 100 * (row.candidate / row.baseline - 1)


def _counted(run: Run) -> Run:
    """The run with the counts that a client writes."""
    entering, leaving = _REQUESTS * (run.isl or 0), _REQUESTS * (run.osl or 0)
    counts = replace(run, asked=_REQUESTS, completed=_REQUESTS, failed=0)
    return replace(counts, input_tokens=entering, output_tokens=leaving)


def _candidate(**changes) -> Callable[[list[Run]], list[Run]]:
    return lambda runs: [replace(run, **changes) if run.arm == "candidate" else run for run in runs]


def _all(**changes) -> Callable[[list[Run]], list[Run]]:
    return lambda runs: [replace(run, **changes) for run in runs]


def _some_failed(runs: list[Run]) -> list[Run]:
    done = _REQUESTS * 6 // 10
    share = {
        "completed": done,
        "failed": _REQUESTS - done,
        "input_tokens": done * 256,
        "output_tokens": done * 64,
    }
    return _candidate(**share)(runs)


def _no_answer(runs: list[Run]) -> list[Run]:
    return _candidate(completed=0, failed=_REQUESTS, input_tokens=0, output_tokens=0, values={})(runs)


def _without_itl(runs: list[Run]) -> list[Run]:
    short = [
        replace(run, values={k: v for k, v in run.values.items() if "itl" not in k and "tpot" not in k})
        for run in runs
    ]
    return _all(osl=1, output_tokens=_REQUESTS)(short)


def _stopped_clock(runs: list[Run]) -> list[Run]:
    return _candidate(impossible={"mean_ttft_ms": 0.0})(runs)


def _same_seed(runs: list[Run]) -> list[Run]:
    return _all(boot="one server", seed=1, prefix_caching=True)(runs)


_EXAMPLES: dict[str, tuple[Callable[[list[Run]], list[Run]], str]] = {
    "nothing changed": (lambda runs: runs, PRIMARY),
    "one pair only": (lambda runs: runs[:2], PRIMARY),
    "40 % of the candidate's requests failed": (_some_failed, PRIMARY),
    "every request of the candidate failed": (_no_answer, PRIMARY),
    "the candidate's answers are shorter": (_candidate(output_tokens=_REQUESTS * 58), PRIMARY),
    "the candidate got shorter prompts": (_candidate(isl=240, input_tokens=_REQUESTS * 240), PRIMARY),
    "a clock that did not move": (_stopped_clock, PRIMARY),
    "no warm-up before the baseline's runs": (
        lambda runs: [replace(run, cold=run.arm == "baseline") for run in runs],
        PRIMARY,
    ),
    "the same prompts to one server, prefix caching on": (_same_seed, PRIMARY),
    "one token per request": (_without_itl, "mean_tpot_ms"),
}
