"""The stand-in for rocprofv3 around a server: it outlives the SIGTERM that ends the server, then writes its database.

Like the real one it puts the traced process's environment and command line into the database.
"""

import json
import os
import signal
import sqlite3
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / "microbench"), str(Path(__file__).parents[3])]
import rocprofv3_stand_in  # noqa: E402


def keep_environment(folder: Path) -> None:
    for path in folder.rglob("*.db"):
        with sqlite3.connect(path) as base:
            (table,) = base.execute(
                "SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'rocpd_info_process_%'"
            ).fetchone()
            base.execute(
                f"UPDATE {table} SET environment = ?, command = ?",
                (json.dumps(dict(os.environ)), " ".join(sys.argv)),
            )


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: None)
    code = rocprofv3_stand_in.main(sys.argv[1:])
    keep_environment(Path(rocprofv3_stand_in.parse(sys.argv[1:])[0].output_directory))
    sys.exit(code)
