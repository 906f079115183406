"""Numbers in the notebooks' prose are computed again from their source: constants, recordings, the published table."""

from functools import cache
from pathlib import Path

import nbformat
import pytest

from latent_moe.config import KIMI_K3
from latent_moe.lab.cost import answer, hardware, predict, table_facts
from latent_moe.lab.cost.gemm import roofline_us
from latent_moe.lab.cost.tail import tail_cost
from latent_moe.lab.cost.terms import layer_parts
from latent_moe.lab.recordings import profile_path
from latent_moe.lab.results import PRIMARY, read_results
from latent_moe.lab.results.comparison import compare, recommend_from_runs

FOLDER = Path(__file__).resolve().parents[3] / "notebooks"
H, L = KIMI_K3.hidden_size, KIMI_K3.expert_input_size
PUBLISHED = str(profile_path("mi355x_pr51253"))


@cache
def _prose(number):
    [path] = FOLDER.glob(f"{number}_*.ipynb")
    cells = nbformat.read(path, as_version=4).cells
    return " ".join(" ".join(cell.source for cell in cells if cell.cell_type == "markdown").split())


def _params(config):
    return {part.name: part for part in layer_parts(config)}


def _gflop(config):
    return sum(part.flop_per_token for part in layer_parts(config)) / 1e9


def _experts_billion(config):
    return _params(config)["routed experts"].params / 1e9


def _corner_ratio():
    """T at which FLOP per byte, T / (1 + T/N + T/L), reaches the corner of the roof: sharded over whole, MI300X."""
    machine = hardware.get("mi300x")
    rate = machine.gemm_efficiency * machine.peak_bf16_tflops
    corner = rate / (machine.gemm_bandwidth_efficiency * machine.hbm_tb_per_s)
    whole, sharded = (corner / (1 - corner * (1 / n + 1 / L)) for n in (H, H // 8))
    return sharded / whole


def _speed_up(tokens):
    machine = hardware.get("mi355x")
    return roofline_us(tokens, H, L, machine) / roofline_us(tokens, H // 8, L, machine)


def _reduces_pct(tokens):
    cost = tail_cost("replicated", tokens, 8, hardware.get("mi355x"))
    return 100 * sum(term.us for term in cost.terms if term.name.startswith("all_reduce")) / cost.total_us


@cache
def _changes(recording, metric, candidate):
    rows = compare(read_results([profile_path(recording)]), candidate=candidate).rows
    return {row.concurrency: row for row in rows if row.metric == metric}


def _published(metric):
    table = compare(read_results([Path(PUBLISHED) / "table.csv"]), baseline="main", candidate="PR")
    return [row.delta_pct for row in table.rows if row.metric == metric]


def _drains():
    return [table_facts.row_facts(row).drain_pct for row in answer.table_rows(PUBLISHED)]


@cache
def _mae(name):
    return answer.predict({"table": PUBLISHED})["mae_pp"][name]


def _gain_at(tp):
    rows = answer.predict({"table": PUBLISHED, "tp": tp})["rows"]
    return next(row["delta_pct"][PRIMARY] for row in rows if row["concurrency"] == 8)


def _step_ms():
    before = predict.of_arm(answer.table_rows(PUBLISHED), "main")
    return predict.prefill_step_ms(before.values(), predict.Setup().budget)


C8, C32 = (
    (lambda arm: _changes("h200x2_vllm", PRIMARY, arm)[8]),
    (lambda arm: _changes("h200x2_vllm", PRIMARY, arm)[32]),
)
ARM = "column_parallel"
# notebook, its words with the number in braces, where the number comes from
NUMBERS = [
    ("01", "With experts on H a token would cost {:.1f} GFLOP", lambda: _gflop(KIMI_K3.replace(latent_size=None))),
    ("01", "on L it costs {:.1f}, projections included", lambda: _gflop(KIMI_K3)),
    ("01", "the 896 experts hold {:.1f} billion a layer", lambda: _experts_billion(KIMI_K3)),
    ("01", "instead of {:.1f}.", lambda: _experts_billion(KIMI_K3.replace(latent_size=None))),
    ("01", "× 2 bytes = {:.1f} MB in bf16", lambda: H * L * 2 / 1e6),
    ("01", "although {:.1f} MB would be its fair share", lambda: H * L * 2 / 8e6),
    ("01", "takes {:.1f} us at 8.0 TB/s", lambda: H * L * 2 / 8e6),
    ("03", "The factor is {:.1f} and not 8", lambda: _speed_up(64)),
    ("03", "the factor is {:.1f}: 896 columns", lambda: _speed_up(16384)),
    ("03", "at {:.2f} times the T for tp = 8", _corner_ratio),
    ("05", "four pairs spread by {:.1f} %", lambda: recommend_from_runs(profile_path("h200x2_vllm_6layers"))[8].sd_pct),
    ("05", "TTFT falls by {:.1f} to", lambda: -max(_published("mean_ttft_ms"))),
    ("05", "to {:.1f} % at every concurrency", lambda: -min(_published("mean_ttft_ms"))),
    ("05", "The product is {:.2f} to", lambda: min(_drains())),
    ("05", "to {:.2f} % short of C", lambda: max(_drains())),
    ("05", "improved*: {:+.1f} % throughput at C = 8", lambda: C8(ARM).delta_pct),
    ("05", "at C = 8 (95 %: {:+.1f} to", lambda: C8(ARM).ci95_pct[0]),
    ("05", "and {:+.1f} % (+1.1 to +4.8) at C = 32", lambda: C32(ARM).delta_pct),
    ("05", "tail for each step, {:+.1f} % (+3.5", lambda: C8("auto").delta_pct),
    ("05", "zero ({:+.1f} %, from +2.3", lambda: _changes("cpu_demo", PRIMARY, None)[4].delta_pct),
    ("06", "together are {:.0f} % of `replicated` at T = 64", lambda: _reduces_pct(64)),
    ("06", "and {:.0f} % at 16,384", lambda: _reduces_pct(16384)),
    ("07", "Throughput is {:.2f} points off on average", lambda: _mae(PRIMARY)),
    ("07", "TPOT {:.2f}, TTFT", lambda: _mae("mean_tpot_ms")),
    ("07", "were published ({:.2f} points off)", lambda: _mae(PRIMARY)),
    ("07", "TTFT {:.2f}: kernels promise", lambda: _mae("mean_ttft_ms")),
    ("07", "where {:.1f} to 4.9 % were published", lambda: min(_published(PRIMARY))),
    ("07", "are the published machine's ({:.0f} ms", _step_ms),
    ("07", "gives {:.1f} % and `2`", lambda: _gain_at(4)),
    ("07", "and `2` gives {:.1f} %", lambda: _gain_at(2)),
]  # fmt: skip


@pytest.mark.parametrize(("notebook", "words", "source"), NUMBERS, ids=[f"{n}: {w}" for n, w, _ in NUMBERS])
def test_the_number_is_that_of_its_source(notebook, words, source):
    assert words.format(source()) in _prose(notebook)
