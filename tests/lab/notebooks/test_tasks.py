"""The notebooks' tasks: a solution is right, nothing written is no error, and a wrong answer gets the hint that fits."""

import linecache

import pytest

from latent_moe.errors import InputError
from latent_moe.lab.notebooks.tasks import NAMES_AND_WHY, TASKS, check, kind_in_words

SHARDED = "def sharded_tail(routed, shared, weight, norm, tp):\n    "
OWN = "shared[:, tp.columns(shared.shape[1])]"
WHOLE = 92 * 7168 * 3584 * 2


def _run(source, name):
    """What a cell defines; its source can be inspected, as in a notebook."""
    file = f"<cell {hash(source)}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    space = {}
    exec(compile(source, file, "exec"), space)
    return tuple(space[part] for part in name.split(", "))


ANSWERS = {
    "01": "replicated_bytes, sharded_bytes",
    "02": "sharded_tail",
    "03": "gemm_shapes",
    "04": "kind_of",
    "05": "column, arm",
    "06": "choose",
    "07": "change_pct",
}


@pytest.mark.parametrize("notebook", TASKS)
def test_the_solution_is_right(notebook):
    verdict = check(notebook, *_run(TASKS[notebook].solution, ANSWERS[notebook]))
    assert verdict.ok, verdict
    assert TASKS[notebook].solution.startswith("# Task\n")


@pytest.mark.parametrize("notebook", TASKS)
def test_nothing_written_yet_is_no_error(notebook):
    empty = {"01": (..., ...), "05": (..., ...)}.get(notebook)
    answer = empty or _run(f"def answer(*_):\n    ...  # notebook {notebook}", "answer")
    verdict = check(notebook, *answer)
    assert verdict.ok is None
    assert "run both cells again" in verdict.says
    assert TASKS[notebook].solution.splitlines()[-1].strip()[:20] in verdict._repr_html_().replace(
        "&quot;", '"'
    )


@pytest.mark.parametrize(
    ("notebook", "source", "hint"),
    [
        ("01", f"replicated_bytes, sharded_bytes = {WHOLE} / 2, 1", "two bytes"),
        ("01", f"replicated_bytes, sharded_bytes = {WHOLE} / 92, 1", "one layer"),
        ("01", f"replicated_bytes, sharded_bytes = {WHOLE}, {WHOLE}", "H/tp rows"),
        ("01", f"replicated_bytes, sharded_bytes = {WHOLE}, {WHOLE} / 64", "only the rows are divided"),
        ("02", f"{SHARDED}h = tp.all_reduce(apply_norm(norm, routed))\n    {OWN} += h @ weight.T\n    return tp.all_reduce(shared)", "complete sum"),
        ("02", f"{SHARDED}h = apply_norm(norm, tp.all_reduce(routed))\n    {OWN} += h @ weight.T\n    return shared", "second all-reduce"),
        ("02", f"{SHARDED}h = apply_norm(norm, tp.all_reduce(routed))\n    {OWN} = h @ weight.T\n    return tp.all_reduce(shared)", "do not overwrite"),
        ("02", f"{SHARDED}h = apply_norm(norm, tp.all_reduce(routed))\n    out = tp.all_reduce(shared)\n    out[:, tp.columns(64)] += h @ weight.T\n    return out", "no other rank ever sees"),
        ("02", f"{SHARDED}h = apply_norm(norm, tp.all_reduce(routed))\n    shared[:, :32] += h @ weight.T\n    return tp.all_reduce(shared)", "tp.columns(H)"),
        ("02", f"{SHARDED}return apply_norm(norm, tp.all_reduce(routed)) @ weight.T", "all columns"),
        ("02", f"{SHARDED}return routed @ shared", "It stopped with RuntimeError"),
        ("02", f"{SHARDED}h = apply_norm(norm, tp.all_reduce(routed))\n    o = tp.all_gather((h @ weight.T).T.contiguous()).T\n    return tp.all_reduce(shared) + o", "two all-reduces and nothing else"),
        ("03", "def gemm_shapes(table):\n    return sorted(set(table[['M', 'N', 'K']].itertuples(index=False, name=None)), key=str)", "missing values"),
        ("03", "def gemm_shapes(table):\n    t = table[table['kind'] == 'gemm']\n    return sorted(set(t[['N', 'M', 'K']].itertuples(index=False, name=None)))", "changed places"),
        ("03", "def gemm_shapes(table):\n    t = table[table['kind'] == 'gemm']\n    return list(t[['M', 'N', 'K']].itertuples(index=False, name=None))", "more than once"),
        ("03", "def gemm_shapes(table):\n    return [(16, 7168, 3584)]", "the shapes are others"),
        ("04", "def kind_of(name):\n    return 'matmul'", '"gemm", "collective" or "other"'),
        ("04", "def kind_of(name):\n    return 'gemm' if 'Cijk' in name else 'other'", "nvjet"),
        ("04", "def kind_of(name):\n    return 'collective' if 'educe' in name else 'gemm' if name[0] in 'Cn' else 'other'", "within one device"),
        ("05", "column, arm = 'total_tok_per_s', 'candidate'", "a result"),
        ("05", "column, arm = 'completed', 'candidate'", "does not differ"),
        ("05", "column, arm = 'output_tokens', 'baseline'", "other arm"),
        ("06", "def choose(tokens):\n    return 'sharded'", "no tail"),
        ("06", "def choose(tokens):\n    return 'column_parallel'", "longer than"),
        ("06", "def choose(tokens):\n    return 'fused'", "up to T = 128 only"),
        ("06", "def choose(tokens):\n    return 'token_parallel' if tokens < 64 else 'fused'", "longer than fused"),
        ("07", "def change_pct(e, n, d, p, q, l):\n    return 100 * (e / (e - l * (n * p + d * q)) - 1)", "divide by 1,000"),
        ("07", "def change_pct(e, n, d, p, q, l):\n    return 100 * (e / (e - (n * p + d * q) / 1e3) - 1)", "multiply by the layers"),
        ("07", "def change_pct(e, n, d, p, q, l):\n    return -100 * l * (n * p + d * q) / 1e3 / e", "change of E2E"),
        ("07", "def change_pct(e, n, d, p, q, l):\n    return 3.0", "the change is"),
    ],
)  # fmt: skip
def test_a_wrong_answer_gets_the_hint_that_fits(notebook, source, hint):
    verdict = check(notebook, *_run(source, ANSWERS[notebook]))
    assert verdict.ok is False
    assert hint in verdict.says


def test_a_fault_of_the_readers_code_is_said():
    verdict = check("04", *_run("def kind_of(name):\n    return nam", "kind_of"))
    assert not verdict.ok
    assert "NameError" in repr(verdict)


def test_names_have_the_kinds_that_the_hints_speak_of():
    assert [kind_in_words(name) for name in NAMES_AND_WHY] == [
        "gemm",
        "gemm",
        "collective",
        "collective",
        *["other"] * 3,
    ]


def test_an_unknown_task():
    with pytest.raises(InputError, match="unknown task '99'"):
        check("99", 1)
