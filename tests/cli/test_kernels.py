"""`latent-moe kernels`: the JSON contract, the groupings, what a person reads."""

import json
import subprocess
import sys

import pytest

from latent_moe.cli import main

KEYS = {"files", "processes", "calls", "total_ns", "busy_ns", "untimed_calls", "partial", "rows", "warnings"}


def run(capsys, *args):
    code = main(["kernels", *map(str, args)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_json_has_the_contracts_keys(capsys, fixtures):
    code, out, _ = run(capsys, fixtures / "traces" / "sharded_kernel_trace.csv", "--json")
    answer = json.loads(out.splitlines()[-1])
    assert code == 0
    assert answer.keys() >= KEYS
    assert (answer["files"], answer["processes"], answer["calls"], answer["untimed_calls"]) == (1, 1, 24, 0)
    assert (answer["total_ns"], answer["busy_ns"], answer["partial"]) == (900_000, 780_000, False)
    assert all({"key", "calls", "total_ns", "mean_ns", "median_ns"} <= row.keys() for row in answer["rows"])
    assert sum(row["total_ns"] for row in answer["rows"]) == answer["total_ns"]


@pytest.mark.parametrize(("by", "keys"), [("kind", 2), ("name", 2), ("region", 1), ("rank", 4)])
def test_groupings(capsys, fixtures, by, keys):
    _, out, _ = run(capsys, fixtures / "traces" / "sharded_kernel_trace.csv", "--by", by, "--json")
    assert len(json.loads(out)["rows"]) == keys


def test_text_shows_the_unknown_share_and_the_warnings(capsys, fixtures):
    _, out, _ = run(capsys, fixtures / "traces" / "impossible.pt.trace.json")
    assert "unknown kernels: " in out
    assert "warning: 1 kernels still ran" in out


def test_salvage_says_partial(capsys, fixtures):
    code, out, _ = run(capsys, fixtures / "traces" / "truncated_results.json", "--salvage", "--json")
    answer = json.loads(out)
    assert (code, answer["calls"], answer["partial"], answer["warnings"][0]["code"]) == (
        0,
        16,
        True,
        "partial",
    )


def test_neither_torch_nor_pandas_is_imported_for_json(fixtures):
    code = (
        "import sys; from latent_moe.cli import main; main(['kernels', sys.argv[1], '--json']); "
        "print([name for name in ('torch', 'pandas', 'rich', 'plotly') if name in sys.modules])"
    )
    path = fixtures / "traces" / "graph_replay.pt.trace.json"
    done = subprocess.run(
        [sys.executable, "-c", code, path], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(("by", "keys"), [("shape", 1), ("layer", 1), ("step", 1), ("stream", 8)])
def test_other_groupings(capsys, fixtures, by, keys):
    _, out, _ = run(capsys, fixtures / "traces" / "sharded_kernel_trace.csv", "--by", by, "--json")
    assert len(json.loads(out)["rows"]) == keys


def test_rows_by_name_say_what_the_name_says(capsys, fixtures):
    _, out, _ = run(capsys, fixtures / "traces" / "graph_replay.pt.trace.json", "--by", "name", "--json")
    rows = json.loads(out)["rows"]
    gemm = next(row for row in rows if row["kind"] == "gemm")
    assert gemm["key"].startswith("Cijk")
    assert {"tile", "transposes", "dtype_a", "dtype_b", "dtype_out"} == gemm["gemm"].keys()
    assert all({"library", "p90_ns", "max_ns", "median_ns"} <= row.keys() for row in rows)


def test_names_are_whole_where_nobody_watches(capsys, fixtures):
    _, out, _ = run(capsys, fixtures / "traces" / "sharded_kernel_trace.csv", "--by", "name")
    _, answer, _ = run(capsys, fixtures / "traces" / "sharded_kernel_trace.csv", "--by", "name", "--json")
    assert all(row["key"] in out for row in json.loads(answer)["rows"])


def test_top_and_match(capsys, fixtures):
    path = fixtures / "traces" / "sharded_kernel_trace.csv"
    _, out, _ = run(capsys, path, "--by", "name", "--top", "1", "--json")
    assert len(json.loads(out)["rows"]) == 1
    _, out, _ = run(capsys, path, "--match", "nccl", "--json")
    assert [row["key"] for row in json.loads(out)["rows"]] == ["collective"]


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (("--top", "0"), "at least one"),
        (("--match", "("), "no regular expression"),
        (("--match", "nowhere"), "no kernel has such a name"),
        (("--save", "x.csv"), "ends in .parquet"),
    ],
)
def test_unusable_options(capsys, fixtures, extra, message):
    code, _, error = run(capsys, fixtures / "traces" / "sharded_kernel_trace.csv", *extra)
    assert (code, error.count("\n")) == (2, 1)
    assert message in error


def test_a_saved_table_gives_the_same_figures(capsys, fixtures, tmp_path):
    pytest.importorskip("pyarrow")
    saved = tmp_path / "table.parquet"
    first = run(capsys, fixtures / "traces" / "sharded_kernel_trace.csv", "--save", saved, "--json")
    again = run(capsys, saved, "--json")
    one, other = (json.loads(answer[1].splitlines()[-1]) for answer in (first, again))
    for name in ("calls", "total_ns", "busy_ns", "span_ns", "idle_ns", "rows", "devices", "collectives"):
        assert one[name] == other[name]
    assert other["formats"] == ["saved table"]


def test_a_damaged_saved_table_is_one_line(capsys, tmp_path):
    pytest.importorskip("pyarrow")
    (tmp_path / "x.parquet").write_bytes(b"PAR1" + bytes(200) + b"PAR1")
    code, _, error = run(capsys, tmp_path / "x.parquet")
    assert (code, error.count("\n")) == (2, 1)


def test_gaps_tell_the_kernels_around_them(capsys, fixtures):
    _, out, _ = run(capsys, fixtures / "traces" / "replicated_kernel_trace.csv", "--json")
    answer = json.loads(out)
    # Four agents, three GEMMs of 100 us each with 20 us between them.
    assert (answer["idle_ns"], [gap["gap_ns"] for gap in answer["gaps"]]) == (4 * 2 * 20_000, [20_000] * 5)
    assert answer["gaps"][0].keys() >= {"agent", "start_ns", "gap_ns", "before", "after", "waited_for"}


def test_kernels_left_out_by_name_leave_no_idle_time(capsys, fixtures):
    path = fixtures / "traces" / "sharded_kernel_trace.csv"
    _, out, _ = run(capsys, path, "--match", "Cijk|MT", "--json")
    answer = json.loads(out.splitlines()[-1])
    assert answer["idle_ns"] is None
    assert answer["gaps"] == []
    assert "idle" not in run(capsys, path, "--match", "Cijk|MT")[1]


def test_ranks_that_begin_together_are_not_late(capsys, tmp_path):
    head = "Kind,Agent_Id,Queue_Id,Kernel_Name,Correlation_Id,Start_Timestamp,End_Timestamp"
    starts = {1: [1000, 11000], 2: [1000, 12000]}
    rows = [
        f"KERNEL_DISPATCH,Agent {agent},1,ncclDevKernel_Generic_1,{agent * 10 + i},{start},{15000 if i else 5000}"
        for agent, times in starts.items()
        for i, start in enumerate(times)
    ]
    path = tmp_path / "two_kernel_trace.csv"
    path.write_text("\n".join([head, *rows]) + "\n")
    _, out, _ = run(capsys, path, "--json")
    ranks = json.loads(out.splitlines()[-1])["collectives"]["ranks"]
    assert [row["last_of"] for row in ranks] == [0, 1]
    assert [row["late_ns"] for row in ranks] == [0, 1000]
