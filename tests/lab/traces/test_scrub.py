"""Scrubbed copies: nothing secret survives in their bytes, and they read as before."""

import gzip
import json
import sqlite3

import pytest
from trace_files import pftrace, spans

from latent_moe.errors import InputError
from latent_moe.lab.secrets import Secrets
from latent_moe.lab.traces import metrics
from latent_moe.lab.traces.read import read
from latent_moe.lab.traces.scrub import scrub

TOKEN, HOST, USER = "hf_AbCdEfGh12345678", "gpu-node-0417", "wilhelmine"
SECRETS = [TOKEN, HOST, USER, "train_secret_model.py", "/home/wilhelmine"]
ENVIRONMENT = {
    "HF_TOKEN": TOKEN,
    "HOSTNAME": HOST,
    "USER": USER,
    "HOME": f"/home/{USER}",
    "OMP_NUM_THREADS": "1",
}
COMMAND = ["python", f"/home/{USER}/train_secret_model.py", f"--token={TOKEN}"]
NAME = "Cijk_Alik_Bljk_BBS_BH_MT64x64x64"


def survivors(folder) -> list[tuple[str, str]]:
    """(file, secret) for every secret whose bytes are in a written file or its name."""
    found = []
    for path in folder.rglob("*"):
        content = path.read_bytes()
        content = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
        found += [
            (path.name, secret) for secret in SECRETS if secret.encode() in content + str(path.name).encode()
        ]
    return found


@pytest.fixture
def kineto(tmp_path):
    kernel = {"ph": "X", "cat": "kernel", "name": NAME, "pid": 0, "tid": 7, "ts": 1.5, "dur": 2.25}
    call = {"ph": "X", "cat": "python_function", "name": f"/home/{USER}/train_secret_model.py(3): step"}
    trace = {
        "schemaVersion": 1,
        "host_name": HOST,
        "env": ENVIRONMENT,
        "command_line": " ".join(COMMAND),
        "traceName": f"/home/{USER}/trace.json",
        "distributedInfo": {"rank": 3, "world_size": 8, "backend": "nccl", "master": HOST},
        "traceEvents": [
            kernel,
            {**call, "pid": 1, "tid": 1, "ts": 1, "dur": 2, "args": {"note": f"on {HOST}"}},
        ],
    }
    path = tmp_path / "in" / "rank3.pt.trace.json.gz"
    path.parent.mkdir()
    path.write_bytes(gzip.compress(json.dumps(trace).encode()))
    return path


@pytest.fixture
def rocprof_json(tmp_path):
    record = {
        **{"thread_id": 9, "correlation_id": {"internal": 1, "external": 0}, "start_timestamp": 1000},
        "end_timestamp": 3500,
        "dispatch_info": {
            **{"agent_id": {"handle": 5}, "queue_id": {"handle": 1}, "kernel_id": 1, "dispatch_id": 1},
            **{"workgroup_size": {"x": 64, "y": 1, "z": 1}, "grid_size": {"x": 64, "y": 1, "z": 1}},
        },
    }
    run = {
        "metadata": {
            "pid": 12,
            "command": COMMAND,
            "node": {"id": 1, "hostname": HOST},
            "environment": ENVIRONMENT,
        },
        "agents": [{"id": {"handle": 5}, "type": 2, "node_id": 1, "name": "gfx950"}],
        "strings": {"code_object_snapshot_filenames": [f"/home/{USER}/a.out"]},
        "code_objects": [{"code_object_id": 1, "uri": f"file:///home/{USER}/lib.so"}],
        "kernel_symbols": [{"kernel_id": 1, "kernel_name": NAME, "formatted_kernel_name": NAME}],
        "buffer_records": {"kernel_dispatch": [record]},
    }
    path = tmp_path / "in" / f"{HOST}_12_results.json"
    path.parent.mkdir()
    path.write_text(json.dumps({"rocprofiler-sdk-tool": [run]}))
    return path


def rocpd_with_secrets(shared, path):
    """The real recording with a command, an environment and a host of somebody; deleted rows stay in free pages."""
    with sqlite3.connect(f"file:{shared}/traces/mi350x_rocpd_small.db?mode=ro", uri=True) as source:
        target = sqlite3.connect(path)
        source.backup(target)
    (uuid,) = target.execute("SELECT value FROM rocpd_metadata WHERE tag = 'uuid'").fetchone()
    target.execute(
        f'UPDATE "rocpd_info_process{uuid}" SET command = ?, environment = ?',
        (" ".join(COMMAND), json.dumps(ENVIRONMENT)),
    )
    target.execute(f'UPDATE "rocpd_info_node{uuid}" SET hostname = ?', (HOST,))
    target.execute(f'UPDATE "rocpd_info_code_object{uuid}" SET uri = ?', (f"file:///home/{USER}/lib.so",))
    target.execute(
        f'INSERT INTO "rocpd_string{uuid}" (guid, string) VALUES (?, ?)', (uuid, f"range of {USER}")
    )
    target.execute("CREATE TABLE gone (text TEXT)")
    target.executemany("INSERT INTO gone VALUES (?)", [(f"{TOKEN} {USER}" * 50,)] * 200)
    target.commit()
    target.execute("DROP TABLE gone")
    target.commit()
    target.close()
    return path


def test_pytorch_profiler_files(kineto, tmp_path):
    done = scrub([kineto], tmp_path / "out")
    assert survivors(tmp_path / "out") == []
    trace = read(done.written[0])
    assert metrics.total_ns(trace.kernels) == 2250
    assert trace.kernels["rank"].tolist() == [3]


def test_rocprofv3_json(rocprof_json, tmp_path):
    done = scrub([rocprof_json.parent], tmp_path / "out")
    assert survivors(tmp_path / "out") == []
    trace = read(done.written[0])
    assert metrics.total_ns(trace.kernels) == 2500
    assert trace.kernels["name"].objects().tolist() == [NAME]


def test_rocpd_and_its_free_pages(shared, tmp_path):
    folder = tmp_path / HOST
    folder.mkdir()
    source = rocpd_with_secrets(shared, folder / "908_results.db")
    content = source.read_bytes()
    assert all(secret.encode() in content for secret in (TOKEN, HOST, USER))
    done = scrub([tmp_path / HOST], tmp_path / "out")
    assert survivors(tmp_path / "out") == []
    before, after = read(source), read(done.written[0])
    assert metrics.total_ns(after.kernels) == metrics.total_ns(before.kernels) == 2_241_969_453
    assert after.kernels["name"].objects().tolist() == before.kernels["name"].objects().tolist()
    with sqlite3.connect(done.written[0]) as db:
        assert db.execute("SELECT command, environment FROM rocpd_info_process").fetchall() == [("", "{}")]
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_csv_keeps_its_layout(tmp_path, fixtures):
    text = f'"Kind","Kernel_Name","Start_Timestamp","End_Timestamp"\r\n"KERNEL_DISPATCH","/home/{USER}/k.cu f(int)",1,2\r\n'
    source = tmp_path / "a_kernel_trace.csv"
    source.write_bytes(text.encode())
    done = scrub([source], tmp_path / "out")
    assert done.written[0].read_bytes() == text.replace(f"/home/{USER}/", "").encode()


def test_a_secret_known_from_one_file_is_looked_for_in_all(kineto, tmp_path):
    """The CSV comes first and cannot know that this word is secret: the JSON's environment tells."""
    (kineto.parent / "a_kernel_trace.csv").write_text(f'"Kernel_Name","Note"\n"k","{TOKEN}"\n')
    scrub([kineto.parent], tmp_path / "out")
    assert survivors(tmp_path / "out") == []


def test_unknown_files_are_left_out_and_named(kineto, tmp_path):
    (kineto.parent / "manifest.json").write_text(json.dumps({"command": " ".join(COMMAND)}))
    (kineto.parent / "x.pftrace").write_bytes(b"\x0a\x03\x08\x01\x00" * 9)
    done = scrub([kineto.parent], tmp_path / "out")
    assert len(done.written) == 1
    assert len(done.left_out) == 2
    assert survivors(tmp_path / "out") == []


def test_what_cannot_be_scrubbed(tmp_path, kineto):
    cut = tmp_path / "cut.json"
    cut.write_text('{"traceEvents": [{"ph": "X"')
    for paths, out in [
        ([cut], tmp_path / "o1"),
        ([tmp_path / "none"], tmp_path / "o2"),
        ([kineto], kineto.parent),
        ([kineto], kineto),
    ]:
        with pytest.raises(InputError):
            scrub(paths, out)


def test_short_values_are_no_secrets():
    secrets = Secrets()
    secrets.add_environment({"A": "1", "GPU_ARCH": "gfx950", "B": "python3", "C": TOKEN})
    assert secrets.all() == [TOKEN]
    assert secrets.clean(f"kernel gfx950 {TOKEN}") == "kernel gfx950 scrubbed"


def test_names_of_kernels_stay_as_they_are():
    for name in (
        "void at::native::f<(a)1, b / c>(int)",
        "_ZN2at6native1fE.kd",
        "torch/nn/module.py(12): forward",
    ):
        assert Secrets().clean(name) == name


def test_a_host_in_a_files_name_does_not_stay(fixtures, tmp_path):
    (source,) = (fixtures / "traces" / "cases").glob("46-*")
    done = scrub([source], tmp_path / "out")
    assert [path.name for path in done.written] == ["scrubbed_4242.1700000000000.pt.trace.json"]
    content = done.written[0].read_bytes()
    assert not [text for text in (b"gpuhost17", b"somebody") if text in content]
    assert metrics.calls(read(done.written[0]).kernels) == 5


@pytest.mark.parametrize("fresh", [True, False])
def test_a_refused_input_leaves_nothing_behind(kineto, tmp_path, fresh):
    (kineto.parent / "cut.pt.trace.json").write_text('{"traceEvents": [{"ph": "X"')
    out = tmp_path / "out"
    if not fresh:
        out.mkdir()
    with pytest.raises(InputError, match="cut"):
        scrub([kineto.parent], out)
    assert out.exists() != fresh
    assert not fresh or not out.exists()
    assert fresh or not list(out.iterdir())


def test_perfetto_traces_are_copied_without_command_and_machine(tmp_path):
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

    path = pftrace(tmp_path / f"{HOST}_1.pftrace", spans(6))
    trace = Trace.FromString(path.read_bytes())
    trace.packet[0].track_descriptor.process.cmdline.extend(COMMAND)
    trace.packet[0].track_descriptor.process.process_name = f"/home/{USER}/train_secret_model.py"
    trace.packet.add().system_info.utsname.release = HOST
    noted = trace.packet.add(timestamp=1, trusted_packet_sequence_id=2).track_event
    noted.debug_annotations.add(name="path", string_value=f"/home/{USER}/train_secret_model.py")
    path.write_bytes(trace.SerializeToString())
    before = metrics.total_ns(read(path).kernels)
    (copied,) = scrub([path], tmp_path / "out").written
    assert metrics.total_ns(read(copied).kernels) == before
    content = copied.read_bytes()
    assert [secret for secret in (TOKEN, USER, "/home/wilhelmine") if secret.encode() in content] == []
    assert HOST.encode() not in content
