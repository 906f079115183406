"""auto: a recording of this machine first, the cost model next, column_parallel last; never what is refused."""

import csv
from dataclasses import replace

import pytest

from latent_moe.config import KIMI_K3, TINY
from latent_moe.lab.cost import auto_tail
from latent_moe.lab.cost.auto_tail import pick
from latent_moe.lab.recordings import Manifest, write_manifest
from latent_moe.parallel import VLLM, TensorParallel
from latent_moe.platform import Platform
from latent_moe.runner import refusal
from latent_moe.tail_variants.registry import TAILS

H200 = Platform("cuda", "NVIDIA H200", 2, None, False, False, None, "2.11")
UNKNOWN = replace(H200, device_name="Some Other Accelerator")
TP2, TP8 = TensorParallel(0, 2), TensorParallel(0, 8)
# us at T = 1 and T = 4096: the lines cross between.
TIMES = {"column_parallel": (20.0, 500.0), "token_parallel": (60.0, 300.0), "pipelined": (70.0, 400.0)}


def record(folder, times=TIMES, mode="eager", name="here", **changes):
    parameters = {"tp": 2, "collectives": True, "hidden_size": 7168, "latent_size": 3584}
    parameters |= changes.pop("parameters", {})
    known = {"kind": "measured", "device": "2 x NVIDIA H200", "date": "2026-01-01"} | changes
    write_manifest(
        folder / name,
        Manifest(name=name, title="t", files={"tails.csv": "times"}, parameters=parameters, **known),
    )
    with (folder / name / "tails.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["tail", "tokens", "tp", "mode", "median_us"])
        for tail, line in times.items():
            writer.writerows([tail, t, 2, mode, us] for t, us in zip((1, 4096), line, strict=True))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("LATENT_MOE_PROFILES", str(tmp_path))
    auto_tail._pick.cache_clear()
    return tmp_path


def test_the_measured_crossover_decides(folder):
    record(folder)
    tail, why = pick(1, KIMI_K3, TP2, H200)
    assert tail == "column_parallel"
    assert "measured" in why
    assert "here" in why
    assert pick(4096, KIMI_K3, TP2, H200)[0] == "token_parallel"
    # On log-log lines column_parallel and token_parallel meet where 20 (500/20)^f = 60 (300/60)^f: f = 0.683.
    crossover = 4096**0.6826
    assert pick(int(crossover * 0.97), KIMI_K3, TP2, H200)[0] == "column_parallel"
    assert pick(int(crossover * 1.03), KIMI_K3, TP2, H200)[0] == "token_parallel"


@pytest.mark.parametrize(
    "changes",
    [
        {"device": "8 x AMD Instinct MI355X"},
        {"kind": "synthetic"},
        {"parameters": {"tp": 8}},
        {"parameters": {"collectives": False}},
        {"parameters": {"hidden_size": 1024}},
    ],
)
def test_a_recording_of_something_else_is_not_consulted(folder, changes):
    record(folder, {"pipelined": (1.0, 1.0)}, **changes)
    tail, why = pick(1, KIMI_K3, TP2, H200)
    assert "modelled for h200" in why
    assert tail != "pipelined"


def test_a_refused_tail_is_never_picked(folder, monkeypatch):
    # The fused kernel cannot run here: neither a recording nor the model may bring it in.
    assert refusal(TAILS["fused"], KIMI_K3, 2, tokens=1) is not None
    record(folder, TIMES | {"fused": (1.0, 1.0)})
    assert pick(1, KIMI_K3, TP2, H200)[0] == "column_parallel"
    for machine in (H200, UNKNOWN):
        assert pick(1, KIMI_K3.replace(shared_width=0), TP2, machine)[0] == "replicated"
        assert pick(1, KIMI_K3, TensorParallel.single(), machine)[0] == "replicated"
        tail, why = pick(1, KIMI_K3.replace(sequence_parallel=True), TP2, machine)
        assert tail == "replicated"
        assert "sequence-parallel" in why


def test_the_cost_model_answers_for_a_machine_it_knows(folder):
    for tokens in (1, 16, 256, 16384):
        tail, why = pick(tokens, KIMI_K3, TP8, H200)
        assert why.startswith("modelled for h200")
        assert refusal(TAILS[tail], KIMI_K3, 8, tokens=tokens) is None


def test_the_model_gives_the_fused_kernel_small_steps_only(folder, monkeypatch):
    monkeypatch.setattr("latent_moe.fused_kernel.launch.interpreted", lambda: True)
    auto_tail._pick.cache_clear()
    assert pick(4, KIMI_K3, TP8, H200)[0] == "fused"
    assert pick(16384, KIMI_K3, TP8, H200)[0] != "fused"
    auto_tail._pick.cache_clear()


def test_an_unknown_machine_gets_the_changes_own_tail(folder):
    tail, why = pick(8, TINY, TP2, UNKNOWN)
    assert tail == "column_parallel"
    assert "Some Other Accelerator" in why
    # H not divisible: column_parallel itself is refused.
    assert pick(8, TINY.replace(hidden_size=63), TP2, UNKNOWN)[0] == "replicated"


def test_over_two_hosts_neither_a_recording_of_one_nor_the_model_answers(folder):
    record(folder, {"pipelined": (1.0, 1.0), "column_parallel": (2.0, 2.0)})
    assert pick(1, KIMI_K3, TP2, H200)[0] == "pipelined"
    tail, why = pick(1, KIMI_K3, replace(TP2, nodes=2), H200)
    assert (tail, "on 2 hosts" in why) == ("column_parallel", True)
    record(
        folder, {"overlap": (1.0, 1.0), "column_parallel": (2.0, 2.0)}, parameters={"nodes": 2}, name="two"
    )
    auto_tail._pick.cache_clear()
    assert pick(1, KIMI_K3, replace(TP2, nodes=2), H200)[0] == "overlap"
    assert pick(1, KIMI_K3, TP2, H200)[0] == "pipelined"


def test_modes_are_kept_apart(folder, monkeypatch):
    record(folder)
    record(folder, {"column_parallel": (50.0, 50.0), "pipelined": (10.0, 10.0)}, mode="graph", name="graphs")
    assert pick(1, KIMI_K3, TP2, H200)[0] == "column_parallel"
    monkeypatch.setattr(auto_tail, "_mode", lambda: "graph")
    tail, why = pick(1, KIMI_K3, TP2, H200)
    assert (tail, "graph" in why) == ("pipelined", True)


def test_a_damaged_recording_is_named_and_does_not_stop_a_step(folder):
    record(folder)
    (folder / "here" / "tails.csv").write_text("tail,tokens\nfused,1\n")
    tail, why = pick(1, KIMI_K3, TP2, H200)
    assert tail in TAILS
    assert "lacks the columns median_us" in why


def test_a_recording_of_the_same_collectives_goes_first(folder):
    record(folder, name="by_torch")
    record(
        folder, {"column_parallel": (9.0, 90.0), "overlap": (8.0, 80.0)}, name="by_vllm",
        parameters={"communicator": VLLM},
    )  # fmt: skip
    served = replace(TP2, communicator=VLLM)
    assert pick(1, KIMI_K3, served, H200)[0] == "overlap"
    tail, why = pick(1, KIMI_K3, TP2, H200)
    assert (tail, "by_torch" in why, "collectives of" in why) == ("column_parallel", True, False)


def test_other_collectives_are_better_than_no_recording_and_named(folder):
    record(folder)
    tail, why = pick(4096, KIMI_K3, replace(TP2, communicator=VLLM), H200)
    assert tail == "token_parallel"
    assert "collectives of torch.distributed" in why


def test_a_broken_recording_does_not_hide_the_others(folder):
    record(folder)
    (folder / "broken").mkdir()
    (folder / "broken" / "manifest.json").write_text("{")
    record(folder, name="without_rows")
    (folder / "without_rows" / "tails.csv").unlink()
    tail, why = pick(4096, KIMI_K3, TP2, H200)
    assert (tail, "measured: here" in why) == ("token_parallel", True)


@pytest.mark.parametrize("named", [None, 5, [1], {}])
def test_a_communicator_that_is_no_name_is_torchs(folder, named):
    record(folder, parameters={"communicator": named})
    assert "collectives of" not in pick(4096, KIMI_K3, TP2, H200)[1]


def test_rows_of_another_tp_or_mode_do_not_answer(folder):
    record(folder, mode="weird")
    why = pick(1, KIMI_K3, TP2, H200)[1]
    assert why.startswith("modelled for h200")
    assert "no row of a tail that can run here at tp 2" in why
