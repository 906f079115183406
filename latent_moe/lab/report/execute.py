"""One notebook executed headless, with a time limit; what it left is kept also when a cell fails."""

import os
import re
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from traitlets.config import Config

_COLOUR_CODES = re.compile(r"\x1b\[[0-9;]*m")


class _NoWidgets(NotebookClient):
    """A client that answers no widget.

    nbclient plays the part of a front end for Output widgets and loses count when one is updated while it draws
    (an empty AssertionError, or a cell that never ends). The report shows static figures: nothing is lost.
    """

    def on_comm_open_jupyter_widget(self, msg):
        """Widgets stay without a front end."""


@dataclass(frozen=True)
class Executed:
    """A notebook with its outputs. `error` is one line, None when every cell ran."""

    name: str
    notebook: nbformat.NotebookNode
    seconds: float
    error: str | None

    @property
    def ok(self) -> bool:
        """Whether every cell ran."""
        return self.error is None


def execute(path: Path, folder: Path, timeout_s: float = 480) -> Executed:
    """Run the notebook at `path` with `folder` as its working directory; the file itself is not touched."""
    notebook = nbformat.read(path, as_version=4)
    started = time.monotonic()
    with _private_sockets() as config:
        client = _NoWidgets(
            notebook,
            # With this name jupyter_client starts this very interpreter, whatever kernels are installed besides.
            kernel_name="python3",
            timeout=timeout_s,
            resources={"metadata": {"path": str(folder)}},
            config=config,
        )
        error = _failure(client, timeout_s)
    # The state of widgets would need a server's scripts to draw: the report shows the static figures.
    notebook.metadata.pop("widgets", None)
    return Executed(path.stem, notebook, round(time.monotonic() - started, 1), error)


@contextmanager
def _private_sockets() -> Iterator[Config]:
    """Kernels answer in a folder of this user: no port that another takes first, nothing for others to listen to."""
    with TemporaryDirectory(prefix="latent_moe_") as folder:
        # A socket's path has 107 characters at most: below a very long TMPDIR the ports of this machine serve.
        short = len(folder) < 80
        yield Config({"ConnectionFileMixin": {"transport": "ipc", "ip": f"{folder}/kernel"}} if short else {})


def _failure(client: NotebookClient, timeout_s: float) -> str | None:
    """Run every cell; what went wrong in one line, None when nothing did."""
    try:
        client.execute()
    except CellExecutionError as failure:
        return _COLOUR_CODES.sub("", f"{failure.ename}: {failure.evalue}")[:500]
    except CellTimeoutError:
        return f"a cell took longer than {timeout_s:g} s"
    except DeadKernelError:
        return "the kernel died"
    except Exception as failure:
        # nbclient cleans up twice after a cell that took too long, and its own assertion hides the reason.
        if isinstance(failure.__context__, CellTimeoutError):
            return f"a cell took longer than {timeout_s:g} s"
        # Whatever goes wrong in the machinery is this notebook's failure, never the end of the tour.
        traceback.print_exc()
        return f"{type(failure).__name__}: {failure}"[:500]
    return None


@contextmanager
def surroundings(out: Path) -> Iterator[None]:
    """The environment of the kernels: where recordings go, and places for Jupyter's own files that can be written."""
    with TemporaryDirectory(prefix="latent_moe_tour_") as scratch:
        changes = {
            "LATENT_MOE_RUN": str(out),
            "IPYTHONDIR": f"{scratch}/ipython",
            "JUPYTER_RUNTIME_DIR": f"{scratch}/runtime",
            "JUPYTER_CONFIG_DIR": f"{scratch}/config",
            # The profile's history and the debugger's files slow a headless kernel and help nobody.
            "PYDEVD_DISABLE_FILE_VALIDATION": "1",
        }
        before = {name: os.environ.get(name) for name in changes}
        os.environ.update(changes)
        try:
            yield
        finally:
            for name, value in before.items():
                os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)
