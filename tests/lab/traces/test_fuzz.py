"""Hypothesis on each format: whatever the records hold, a clean table or InputError, with the figures of the records."""

import json

import pytest
import trace_files as files
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from latent_moe.cli.kernels import summary
from latent_moe.errors import InputError
from latent_moe.lab.traces import metrics
from latent_moe.lab.traces.read import read

SETTINGS = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
SPANS = st.lists(
    st.builds(
        lambda name, start, length, queue: files.Span(
            name, start, start + length, queue=queue, correlation=1
        ),
        st.sampled_from(files.NAMES),
        st.integers(1, 1 << 44),
        st.integers(0, 1 << 30),
        st.integers(0, 3),
    ),
    min_size=1,
    max_size=12,
)
WRITERS = {
    "json": lambda folder, spans: files.tool_json(folder / "1_results.json", files.tool_entry(spans)),
    "csv": lambda folder, spans: files.csv_trace(folder / "1_kernel_trace.csv", spans),
    "kineto": lambda folder, spans: files.kineto_json(folder / "1.json", files.kineto_events(spans)),
    "rocpd": lambda folder, spans: files.rocpd(folder / "1_results.db", spans),
}
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=4,
)


def use(path):
    """A clean table or the clean error."""
    try:
        trace = read(path)
    except InputError as error:
        assert path.name in str(error)  # noqa: PT017
        return None
    json.dumps(summary(trace, "rank"))
    assert len(trace.table) == len(trace.kernels) > 0
    return trace


def impossible(spans):
    """Spans that end after two successors on their queue have started."""
    by_queue = {}
    for span in sorted(spans, key=lambda s: (s.start, s.end)):
        by_queue.setdefault((span.agent, span.queue), []).append(span)
    pairs = ((one, last) for queue in by_queue.values() for one, last in zip(queue, queue[2:], strict=False))
    return sum(last.start < one.end for one, last in pairs)


@pytest.mark.parametrize("kind", WRITERS)
@SETTINGS
@given(spans=SPANS)
def test_any_spans(tmp_path, kind, spans):
    for old in tmp_path.iterdir():
        old.unlink()
    trace = use(WRITERS[kind](tmp_path, spans))
    if trace is None:
        assert impossible(spans) > 3
        return
    assert len(trace.kernels) == len(spans)
    whole = ~trace.kernels["flagged"]
    expected = sum(s.end - s.start for s, keep in zip(spans, whole, strict=True) if keep)
    assert int(trace.kernels["dur_ns"][whole].sum()) == expected
    assert metrics.busy_ns(trace.kernels) <= sum(s.end - s.start for s in spans)


@SETTINGS
@given(
    field=st.sampled_from(["ph", "cat", "name", "pid", "tid", "ts", "dur", "args"]),
    junk=JUNK,
    place=st.integers(0, 5),
)
def test_any_value_in_a_kineto_event(tmp_path, field, junk, place):
    events = files.kineto_events(files.spans(6))
    events[place][field] = junk
    use(files.kineto_json(tmp_path / "a.json", events))


@SETTINGS
@given(
    path=st.sampled_from(
        ["thread_id", "start_timestamp", "end_timestamp", "dispatch_info", "correlation_id"]
    ),
    junk=JUNK,
)
def test_any_value_in_a_dispatch_record(tmp_path, path, junk):
    entry = files.tool_entry(files.spans(6))
    entry["buffer_records"]["kernel_dispatch"][2][path] = junk
    use(files.tool_json(tmp_path / "a.json", entry))


@SETTINGS
@given(column=st.integers(0, len(files.COLUMNS_7) - 1), cell=st.text(max_size=12))
def test_any_cell_in_a_csv_row(tmp_path, column, cell):
    path = files.csv_trace(tmp_path / "1_kernel_trace.csv", files.spans(3, names=("rmsnorm",)))
    header, first, *rest = path.read_text().splitlines()
    cells = first.split(",")
    cells[column] = cell
    path.write_text("\n".join([header, ",".join(cells), *rest]), encoding="utf-8", errors="replace")
    use(path)


@SETTINGS
@given(
    column=st.sampled_from(["start", "end", "kernel_id", "pid", "tid", "queue_id", "grid_size_x"]),
    junk=st.one_of(
        st.none(),
        st.integers(-(1 << 63), (1 << 63) - 1),
        st.floats(allow_nan=False),
        st.text(max_size=5),
        st.binary(max_size=5),
    ),
)
def test_any_cell_in_a_dispatch_table(tmp_path, column, junk):
    import sqlite3

    path = tmp_path / "1_results.db"
    path.unlink(missing_ok=True)
    files.rocpd(path, files.spans(4))
    with sqlite3.connect(path) as db:
        db.execute(f'UPDATE rocpd_kernel_dispatch_00000001_aaaa SET "{column}" = ? WHERE id = 2', (junk,))
    db.close()
    use(path)


@SETTINGS
@given(
    data=st.binary(max_size=300),
    start=st.sampled_from([b"", b"{", b"[", b"\n", b"\x1f\x8b", b'"Kernel_Name",', b"SQLite format 3\x00"]),
)
def test_any_bytes(tmp_path, data, start):
    path = tmp_path / "any.bin"
    path.write_bytes(start + data)
    use(path)
