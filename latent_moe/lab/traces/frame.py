"""The kernel table as a pandas DataFrame; apart from `table` because pandas is slow to import."""

import numpy as np
import pandas as pd

from latent_moe.lab.traces.table import PUBLIC_COLUMNS, TIME_COLUMNS, Coded, Kernels


def to_frame(kernels: Kernels) -> pd.DataFrame:
    """[n, 18] with the public columns: text as categories, times and numbers as nullable Int64."""
    untimed = ~np.asarray(kernels["timed"])
    absent_times = dict.fromkeys(("start_ns", "end_ns"), untimed | kernels["averaged"]) | {"dur_ns": untimed}
    columns: dict = {}
    for name in PUBLIC_COLUMNS:
        column = kernels[name]
        if isinstance(column, Coded):
            columns[name] = pd.Categorical.from_codes(
                column.codes, categories=pd.Index(column.values, dtype=object)
            )
        else:
            absent = absent_times[name] if name in TIME_COLUMNS else column < 0
            columns[name] = pd.arrays.IntegerArray(np.array(column, dtype=np.int64), np.array(absent))
    return pd.DataFrame(columns, columns=list(PUBLIC_COLUMNS))
