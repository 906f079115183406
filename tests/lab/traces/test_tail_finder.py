"""The tail finder: every form of this project's recordings, and none where there is no tail."""

import re

import numpy as np
import pytest

from latent_moe.lab.traces.read import read
from latent_moe.lab.traces.table import Kernels, Ranges, Trace, encode
from latent_moe.lab.traces.tail_finder import find_tail

FORMS = ("replicated", "column_parallel", "overlap", "token_parallel", "pipelined", "fused")


@pytest.mark.parametrize("folder", ["h200x2_tails", "h200x2_tails_vllm"])
@pytest.mark.parametrize("form", FORMS)
def test_each_form_of_the_recordings(repository, folder, form):
    trace = read(repository / "profiles" / folder / f"trace_{form}.json.gz")
    # What the workload calls its regions would give the answer away.
    trace.kernels["region"] = trace.kernels["region"].map(lambda name: re.sub(r"tail=\w+ ", "", name))
    finding = find_tail(trace)
    assert (finding.form, finding.layers) == (form, 1.0)
    assert (finding.hidden, finding.latent, finding.steps) == (7168, 3584, 6)
    assert finding.tokens == {16: 3, 4096: 3}
    assert finding.tp == (None if form in ("replicated", "overlap") else 2)
    assert finding.share_of_step == 1.0
    assert sum(finding.parts_ns.values()) >= finding.per_step_ns - 1e-3 > 0


def test_the_synthetic_recordings(repository):
    folder = repository / "profiles" / "synthetic_k3_tail"
    sharded = find_tail(read(folder / "column_parallel"))
    assert (sharded.form, sharded.tokens, sharded.latent) == ("column_parallel", {16: 32}, 3584)
    # No size of a collective is recorded: whose add it is that follows the second reduce cannot be told.
    assert find_tail(read(folder / "replicated")).form == "unknown"


def test_third_party_recordings_have_none(shared):
    names = [
        path for path in sorted((shared / "traces").iterdir()) if path.suffix in (".gz", ".db", ".pftrace")
    ]
    assert names
    for path in names:
        finding = find_tail(read(path))
        assert finding.form == "none", path.name
        assert finding.evidence


def _recording(
    letters: str, shapes: dict[int, tuple[int, int, int]] | None = None, dims: dict[int, str] | None = None
) -> Trace:
    """A made-up recording: one kernel of 10 us a letter, one after the other."""
    kinds = {
        "R": "collective",
        "A": "collective",
        "N": "norm",
        "G": "gemm",
        "E": "elementwise",
        "X": "attention",
        "C": "copy",
    }
    names = {"R": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "A": "ncclDevKernel_AllGather_RING_LL"}
    n = len(letters)
    start = np.arange(n, dtype=np.int64) * 11_000
    sizes = np.array([(shapes or {}).get(place, (-1, -1, -1)) for place in range(n)], dtype=np.int64)
    return Trace(
        Kernels(
            n,
            {
                "process": encode(["1"] * n),
                "agent": encode(["Agent 0"] * n),
                "queue": encode(["0"] * n),
                "name": encode([names.get(letter, f"kernel_{letter}") for letter in letters]),
                "kind": encode([kinds[letter] for letter in letters]),
                "dims": encode([(dims or {}).get(place) for place in range(n)]),
                "start_ns": start,
                "end_ns": start + 10_000,
                "dur_ns": np.full(n, 10_000, dtype=np.int64),
                "timed": np.ones(n, dtype=bool),
                **{letter: sizes[:, column] for column, letter in enumerate("MNK")},
            },
        ),
        Ranges(0),
    )


@pytest.mark.parametrize(
    ("letters", "form"),
    [
        ("XRNGRXRNGR", "column_parallel"),
        ("XRNGERX", "column_parallel"),
        ("XRNGREX", "unknown"),
        ("XRCNGCRX", "column_parallel"),
        ("XRRNGEX", "overlap"),
        ("XRRNGAX", "row_parallel"),
        # Dense layers: attention or an activation between two all-reduces, and two GEMMs.
        ("RNGXGRNGEGRNGXGR", "none"),
        ("RNGEGRRNGXGR", "none"),
        ("RNXR", "none"),
        ("RNGEXRNGE", "none"),
        ("NGXGNGEG", "none"),
    ],
)
def test_order_alone(letters, form):
    assert find_tail(_recording(letters)).form == form


def test_shapes_tell_replicated_from_sharded_and_reject_what_is_none():
    first, second = "[[16,3584]]", "[[16,7168]]"
    whole = _recording("RNGRE", {2: (16, 7168, 3584)}, {0: first, 3: second})
    assert find_tail(whole).form == "replicated"
    sharded = find_tail(_recording("RNGRE", {2: (16, 896, 3584)}, {0: first, 3: second}))
    assert (sharded.form, sharded.tp) == ("column_parallel", 8)
    other = find_tail(_recording("RNGRE", {2: (16, 896, 7168)}, {0: first, 3: second}))
    assert other.form == "none"


def test_joint_needs_its_shapes():
    shapes = {2: (16, 7168, 3584)}
    assert find_tail(_recording("XRNGEX", {3: (16, 7168, 3584)}, {1: "[[16,10752]]"})).form == "joint"
    assert find_tail(_recording("RNGE", shapes, {0: "[[16,7168]]"})).form == "none"
