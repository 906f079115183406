"""Does the table call equal arms different, and does it find what is there? Simulated sessions through the real table.

`python -m tools.studies.aa_study OUT [--runs FOLDER]` records both studies as a profile of kind synthetic.
"""

import argparse
import csv
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import scipy

from latent_moe.lab import recordings
from latent_moe.lab.results import METRICS, PRIMARY, read_results, stats, validity
from latent_moe.lab.results.comparison import compare
from latent_moe.lab.results.simulate import ASSUMED, Noise, noise_from_runs, session

PAIR_COUNTS = tuple(range(3, 13))
COMPARISONS = 2_000
# `bench` says after every pair how many it takes: what is found by who asks once, and by who asks again.
ASKED_AT = ((3,), (3, 10))


def aa_study(
    noise: Noise = ASSUMED, comparisons: int = COMPARISONS, seed: int = 0, effect_pct: float = 0.0
) -> list[dict]:
    """`comparisons` tables, spread evenly over 3 to 12 pairs; with no effect every verdict but inconclusive is false.

    One row per metric and number of pairs, and one per metric over all (`pairs` "all"): comparisons, improved,
    regressed and decided_pct, the share of both in percent.
    """
    rng = np.random.default_rng(seed)
    counts: Counter = Counter()
    for index in range(comparisons):
        pairs = PAIR_COUNTS[index % len(PAIR_COUNTS)]
        for row in compare(session(noise, pairs, effect_pct, rng)).rows:
            counts[row.metric, pairs, row.verdict] += 1
            counts[row.metric, "all", row.verdict] += 1
    return [_share(counts, metric, pairs) for metric in METRICS for pairs in (*PAIR_COUNTS, "all")]


def _share(counts: Counter, metric: str, pairs: object) -> dict:
    of_these = {
        verdict: number for (name, size, verdict), number in counts.items() if (name, size) == (metric, pairs)
    }
    total = sum(of_these.values())
    improved, regressed = of_these.get("improved", 0), of_these.get("regressed", 0)
    return {
        "metric": metric,
        "pairs": pairs,
        "comparisons": total,
        "improved": improved,
        "regressed": regressed,
        "decided_pct": 100 * (improved + regressed) / total if total else None,
    }


def power_study(
    noise: Noise = ASSUMED, effects_pct: Sequence[float] = (0.0, 3.0), sessions: int = COMPARISONS, **plan
) -> list[dict]:
    """Sessions that run three pairs, ask `recommend_pairs` how many it takes to find 3 %, and go on to that number; and
    those that ask again at ten pairs, where the spread is better known.

    One row per planted effect and protocol: sessions, found_pct (improved in the primary metric), wrong_pct (regressed),
    and the median and largest number of pairs run. `plan` takes seed, power and target_pct.
    """
    return [
        _power(noise, effect, sessions, asked_at, **plan) for asked_at in ASKED_AT for effect in effects_pct
    ]


def _power(
    noise: Noise,
    effect: float,
    sessions: int,
    asked_at: Sequence[int],
    seed: int = 0,
    power: float = 0.8,
    target_pct: float = 3.0,
) -> dict:
    rng = np.random.default_rng(seed)
    verdicts: Counter = Counter()
    taken = []
    for _ in range(sessions):
        ratios: list[float] = []
        for pairs in asked_at:
            ratios += _log_ratios(noise, pairs - len(ratios), effect, rng)
            wanted = stats.recommend_pairs(ratios, target_pct, power).pairs or 0
        ratios += _log_ratios(noise, max(wanted - len(ratios), 0), effect, rng)
        verdicts[stats.verdict(stats.paired_interval(ratios), METRICS[PRIMARY].sign)] += 1
        taken.append(len(ratios))
    return {
        "asked_at": " and ".join(map(str, asked_at)),
        "effect_pct": effect,
        "power_asked": power,
        "target_pct": target_pct,
        "sessions": sessions,
        "found_pct": 100 * verdicts["improved"] / sessions,
        "wrong_pct": 100 * verdicts["regressed"] / sessions,
        "median_pairs": float(np.median(taken)),
        "max_pairs": max(taken),
    }


def _log_ratios(noise: Noise, pairs: int, effect_pct: float, rng: np.random.Generator) -> list[float]:
    runs = session(noise, pairs, effect_pct, rng).runs
    sides = [[run for run in runs if run.arm == arm] for arm in ("baseline", "candidate")]
    found = validity.pair_runs(*sides)[0] if runs else []
    return [ratio for pair in found if (ratio := pair.log_ratio(PRIMARY)) is not None]


def record(folder: str | Path, runs: Iterable[str | Path] = (), seed: int = 0) -> Path:
    """Both studies into `folder`, with a manifest; the noise is that of `runs` (result files or folders) if given."""
    places = [str(path) for path in runs]
    noise = noise_from_runs(read_results(list(places)).runs) if places else ASSUMED
    out = Path(folder)
    out.mkdir(parents=True, exist_ok=True)
    _write(out / "aa.csv", aa_study(noise, seed=seed))
    _write(out / "power.csv", power_study(noise, seed=seed))
    recordings.write_manifest(out, _manifest(out.name, noise, places, seed))
    return out


def _manifest(name: str, noise: Noise, places: list[str], seed: int) -> recordings.Manifest:
    tail = f" --runs {' '.join(places)}" if places else ""
    return recordings.Manifest(
        name=name,
        kind="synthetic",
        title=f"Equal arms and a planted 3 % through the table: {COMPARISONS} simulated comparisons",
        device="none: simulated",
        date=datetime.now(UTC).date().isoformat(),
        command=f"python -m tools.studies.aa_study profiles/{name}{tail}",
        software={"numpy": np.__version__, "scipy": scipy.__version__},
        files={
            "aa.csv": "no effect: share of verdicts other than inconclusive, by metric and number of pairs",
            "power.csv": "as many pairs as recommended at 3 pairs, or at 3 and again at 10: share of sessions that find the effect, pairs taken",
        },
        parameters={"seed": seed, "noise": noise.as_dict()},
        notes="Log-normal factors per server start and per run on TTFT and TPOT; the rates follow by Little's law.",
    )


def _write(path: Path, rows: list[dict]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def main() -> None:
    """The command of the module's first lines."""
    parser = argparse.ArgumentParser(description="Record the A/A and power studies of the table.")
    parser.add_argument("out", metavar="OUT", help="folder to write")
    parser.add_argument(
        "--runs", nargs="+", default=[], metavar="PATH", help="recorded runs whose noise is taken"
    )
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    print(record(args.out, args.runs, args.seed))


if __name__ == "__main__":
    main()
