"""What to run on a machine and what it is worth: the tail at each T, the change end to end with its band, the pairs of
runs that would show it, the commands, and what would change the answer.

T tokens of a step, B tokens of a full prefill step, C requests in flight, tp ranks.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from latent_moe.config import LatentMoEConfig
from latent_moe.errors import InputError
from latent_moe.lab import recordings
from latent_moe.lab.cost import answer, hardware, predict, savings
from latent_moe.lab.cost.bands import Bands, sensitivity
from latent_moe.lab.cost.hardware import Hardware, built_in_constants
from latent_moe.lab.cost.predict import SCORED, Setup
from latent_moe.lab.cost.tail import crossovers, tail_cost
from latent_moe.lab.results import read_results
from latent_moe.lab.results.stats import t_power
from latent_moe.tail_variants.registry import AUTO

# Where a server's steps are not known: how many times its tails a step takes, least and most. On the published machine a
# decode step takes 8 times its replicated tails and a prefill step 3 times.
STEP_OVER_TAILS = (3.0, 8.0)
POWER = 0.8
MOST_PAIRS = 200


@dataclass(frozen=True)
class Deployment:
    """What is asked about: a machine, a layer and the traffic; `budget` is tokens a step."""

    machine: Hardware
    config: LatentMoEConfig
    tp: int = 8
    isl: int = 8192
    osl: int = 1024
    concurrency: int = 8
    budget: int = 16384

    @property
    def setup(self) -> Setup:
        """The same for the closed form."""
        return Setup(self.tp, self.config.num_layers, self.budget, "replicated", AUTO)


def advise(
    deployment: Deployment, table: str | None = None, trace: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The advice as a plain dict. `table`: results of the user's own server, whose times take the place of assumed steps;
    `trace`: what its recording says of the tail (form, share_of_step).

    Raises InputError where the layer, the ranks or the traffic are outside what the model describes.
    """
    if deployment.tp == 1:
        raise InputError("tp 1: one rank has nothing to shard, the change does nothing there")
    tails = _tails(deployment)
    worth = _from_table(deployment, table) if table else _assumed(deployment)
    steps = worth.pop("step_us_per_layer", None)
    noise = built_in_constants()["noise.total_tok_per_s"].value
    pairs = pairs_to_show(worth["delta_pct"]["total_tok_per_s"], noise)
    return {
        "kind": "modelled",
        "hardware": deployment.machine.name,
        "tp": deployment.tp,
        "tails": tails,
        **worth,
        "share_of_step": _shares(steps, deployment) | _traced(trace),
        "pairs_to_show_it": pairs,
        "commands": _commands(deployment, pairs),
        "would_change_it": _would_change(deployment),
    }


def _tails(deployment: Deployment) -> list[dict[str, Any]]:
    """Which tail is the cheapest from which T on, and by how much over the replicated one."""
    lines = []
    for tokens, tail in crossovers(deployment.tp, deployment.machine, deployment.config):
        best, before = (_cost_us(deployment, name, tokens) for name in (tail, "replicated"))
        why = f"modelled: {best:.0f} us a layer where replicated takes {before:.0f}"
        lines.append({"tokens": tokens, "tail": tail, "why": why})
    return lines


def _cost_us(deployment: Deployment, tail: str, tokens: int) -> float:
    return tail_cost(tail, tokens, deployment.tp, deployment.machine, deployment.config).total_us


def _savings_of(deployment: Deployment):
    return lambda machine: savings.modelled(machine, deployment.tp, deployment.config, "replicated", AUTO)


def _from_table(deployment: Deployment, table: str) -> dict[str, Any]:
    """By the rows of a table of the user's own: the one asked for, else the nearest, which is then said."""
    asked = {
        "table": table,
        "machine": deployment.machine,
        "hardware": deployment.machine.name,
        "tp": deployment.tp,
    }
    asked |= {"candidate_tail": AUTO}
    if not (Path(table) / recordings.MANIFEST).is_file():
        asked |= {"layers": deployment.config.num_layers, "budget": deployment.budget}
    arms = sorted({run.arm or "?" for run in read_results([table]).runs if run.role == "candidate"})
    found = answer.predict(asked | ({"candidate": arms[0]} if arms else {}))
    row = min(found["rows"], key=lambda row: _distance(row, deployment))
    used = f"its row {row['isl']}/{row['osl']} at concurrency {row['concurrency']}"
    if any(_distance(row, deployment)):
        used += (
            f", the nearest to {deployment.isl}/{deployment.osl} at {deployment.concurrency}, which it lacks"
        )
    return {
        "delta_pct": {name: row["delta_pct"][name] for name in SCORED},
        "band90_pct": row["band90_pct"],
        "concurrency": row["concurrency"],
        "steps": f"from the table's own times, {used}",
        "step_us_per_layer": [
            1e3 * ms / found["layers"] for ms in (row["baseline"]["mean_tpot_ms"], found["prefill_step_ms"])
        ],
    }


def _distance(row: Mapping[str, Any], deployment: Deployment) -> tuple[bool, int]:
    """(whether the lengths are others, how far the concurrency lies from the one asked for)."""
    other = (row["isl"], row["osl"]) != (deployment.isl, deployment.osl)
    return other, abs(row["concurrency"] - deployment.concurrency)


def _assumed(deployment: Deployment) -> dict[str, Any]:
    """Without a table: the band spans steps of the least and the most multiple of their tails."""
    setup, savings_of = deployment.setup, _savings_of(deployment)
    saving = savings_of(deployment.machine)
    spread = Bands(deployment.machine, saving, savings_of, setup)
    deltas, bands = [], []
    for times in STEP_OVER_TAILS:
        steps = (
            times * setup.layers * _cost_us(deployment, "replicated", tokens) / 1e3
            for tokens in (deployment.budget, deployment.concurrency)
        )
        step_ms, decode_ms = steps
        row = predict.traffic_row(
            deployment.concurrency, deployment.isl, deployment.osl, step_ms, decode_ms, deployment.budget
        )
        deltas.append(predict.predict_row(row, step_ms, saving, setup).delta_pct)
        bands.append(spread.of_row(row, step_ms))
    return {
        "delta_pct": {name: sum(delta[name] for delta in deltas) / len(deltas) for name in SCORED},
        "band90_pct": {
            name: [min(band[name][0] for band in bands), max(band[name][1] for band in bands)]
            for name in SCORED
        },
        "concurrency": deployment.concurrency,
        "steps": f"assumed: {STEP_OVER_TAILS[0]:g} to {STEP_OVER_TAILS[1]:g} times their tails; --table with results of your "
        "own server takes their place",
    }


def _shares(steps: list[float] | None, deployment: Deployment) -> dict[str, float | None]:
    """What part of a decode and of a full prefill step the replicated tails take, where the steps are known."""
    if steps is None:
        return {"decode": None, "prefill": None}
    sizes = (deployment.concurrency, deployment.budget)
    tails = [_cost_us(deployment, "replicated", tokens) for tokens in sizes]
    return {name: part / whole for name, part, whole in zip(("decode", "prefill"), tails, steps, strict=True)}


def _traced(trace: Mapping[str, Any] | None) -> dict[str, Any]:
    return {} if trace is None else {"recorded": trace["share_of_step"], "recorded_form": trace["form"]}


def pairs_to_show(delta_pct: float, spread: float) -> int | None:
    """Pairs of runs whose two-sided t test finds the change with probability POWER; None: more than MOST_PAIRS.

    `spread` is the standard deviation of one pair's log ratio.
    """
    effect = delta_pct / 100
    return next((n for n in range(3, MOST_PAIRS + 1) if t_power(effect, spread, n) >= POWER), None)


def _commands(deployment: Deployment, pairs: int | None) -> list[str]:
    recipe = "mi355x_one_build" if deployment.machine.name.startswith("mi") else "gpu_pair_auto"
    measure = f"latent-moe bench {recipe} --pairs {pairs or MOST_PAIRS} --out runs/mine"
    return [f"latent-moe tails --tp {deployment.tp}", measure, "latent-moe table runs/mine"]


def _would_change(deployment: Deployment) -> list[str]:
    """The constants whose range moves a decode step's saving most, and the facts that would turn the answer."""
    rows = sensitivity(deployment.machine, _savings_of(deployment), deployment.setup, deployment.concurrency)
    ranked = sorted(rows, key=lambda row: -abs(float(row["decode_us_high"]) - float(row["decode_us_low"])))
    lines = [
        f"{row['constant']} from {row['low']:g} to {row['high']:g}: a decode step saves {row['decode_us_low']:.1f} to "
        f"{row['decode_us_high']:.1f} us a layer"
        for row in ranked[:2]
    ]
    return [
        *lines,
        "a baseline that sums both partial results in one all-reduce (joint): predict --baseline-tail joint",
        "a sharded tail for large steps only: predict --shard-from T",
    ]


def text(advice: Mapping[str, Any]) -> str:
    """The advice for people."""
    lines = [f"{advice['hardware']}, tp {advice['tp']}, modelled"]
    lines += [f"  from T = {item['tokens']}: {item['tail']} ({item['why']})" for item in advice["tails"]]
    lines.append(f"worth at {advice['concurrency']} in flight (steps {advice['steps']}):")
    for name in SCORED:
        low, high = advice["band90_pct"][name]
        lines.append(f"  {name} {advice['delta_pct'][name]:+.2f} %, 90 % band {low:+.2f} to {high:+.2f} %")
    shares = {name: value for name, value in advice["share_of_step"].items() if isinstance(value, float)}
    lines += [f"  the tail is {100 * value:.0f} % of a step ({name})" for name, value in shares.items()]
    pairs = advice["pairs_to_show_it"]
    lines.append(
        f"{pairs} pairs of runs find it with probability {POWER:g}, if runs scatter as on two H200"
        if pairs
        else f"more than {MOST_PAIRS} pairs of runs would be needed: the change cannot be measured there"
    )
    return "\n".join(
        [*lines, "commands:", *(f"  {line}" for line in advice["commands"]), "what would change it:"]
        + [f"  {line}" for line in advice["would_change_it"]]
    )


def machine_called(name: str | None) -> Hardware:
    """The machine by name. Raises InputError without one: a machine is never guessed."""
    if name is None:
        known = ", ".join(hardware.known())
        raise InputError(f"say --hardware: here, or one of {known}")
    return hardware.get(name)
