"""What a sweep has done so far, line by line in a file: shown while it runs, and kept when it is interrupted.

Rank 0 writes, the process that launched the ranks reads. A line is one JSON object with `event`: "skipped" (a tail that
will not be timed), "round" (a pass begins), "taken" (samples of one row), "check" (an error against float64).
"""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from latent_moe.lab.microbench.timing import summarise

POLL_S = 0.2
Key = tuple[str, int, str]


def note(journal: Path | None, event: str, **values: Any) -> None:
    """Append one line; nothing without a journal."""
    if journal is not None:
        with journal.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"event": event, **values}) + "\n")


@dataclass
class PartialRecording:
    """A sweep as far as its journal tells: samples by (tail, T, mode), refusals, checks, passes begun."""

    tp: int = 1
    rounds: int = 1
    begun: int = 0
    samples_us: dict[Key, list[float]] = field(default_factory=dict)
    skipped: list[dict[str, Any]] = field(default_factory=list)
    checks: list[dict[str, Any]] = field(default_factory=list)

    def add(self, line: dict[str, Any]) -> str | None:
        """Take one line; returns what to show of it, None where it is for the recording only."""
        event = line.pop("event")
        if event == "skipped":
            self.skipped.append(line)
        elif event == "check":
            self.checks.append(line)
        elif event == "round":
            self.tp, self.rounds, self.begun = line["tp"], line["rounds"], line["number"]
            return (
                f"round {self.begun} of {self.rounds}: {line['points']} pairs of tail and T, {line['modes']}"
            )
        else:
            key = (line["tail"], line["tokens"], line["mode"])
            self.samples_us.setdefault(key, []).extend(line["samples_us"])
            if self.begun == self.rounds:
                return row_text(self.row(key))
        return None

    def row(self, key: Key) -> dict[str, Any]:
        """A row of tails.csv from the samples taken so far."""
        tail, tokens, mode = key
        timing = {name: round(us, 3) for name, us in vars(summarise(self.samples_us[key])).items()}
        return {"tail": tail, "tokens": tokens, "tp": self.tp, "mode": mode, **timing}

    def found(self) -> dict[str, list[dict[str, Any]]]:
        """What run_sweep would have given, had it ended here; checks are rank 0's."""
        return {
            "rows": [self.row(key) for key in self.samples_us],
            "skipped": self.skipped,
            "checks": self.checks,
        }

    @property
    def fewest_and_most(self) -> tuple[int, int]:
        """Samples of the row with the fewest, and of that with the most."""
        counts = [len(samples) for samples in self.samples_us.values()] or [0]
        return min(counts), max(counts)


def row_text(row: dict[str, Any]) -> str:
    """One row of times as a line."""
    times = f"{row['median_us']:>11.1f}{row['p10_us']:>10.1f}{row['p90_us']:>10.1f}"
    return f"{row['tail']:<18}{row['tokens']:>7} {row['mode']:<6}{times}"


def skipped_text(skipped: list[dict[str, Any]]) -> list[str]:
    """One line a tail and reason, with every T that it concerns."""
    tokens: dict[tuple[str, str], list[int]] = {}
    for item in skipped:
        tokens.setdefault((item["tail"], item["reason"]), []).append(item["tokens"])
    return [
        f"not timed: {tail} at T = {', '.join(map(str, which))}: {reason}"
        for (tail, reason), which in tokens.items()
    ]


@contextmanager
def followed(journal: Path, show: Callable[[str], None]) -> Iterator[PartialRecording]:
    """Show the journal's lines while the block runs; gives the progress, complete once the block has ended."""
    progress, over = PartialRecording(), threading.Event()
    journal.touch()
    with journal.open(encoding="utf-8") as file:
        follower = threading.Thread(target=_follow, args=(file, progress, show, over), daemon=True)
        follower.start()
        try:
            yield progress
        finally:
            over.set()
            follower.join()


def _follow(file, progress: PartialRecording, show: Callable[[str], None], over: threading.Event) -> None:
    half, refused_shown = "", False
    while True:
        last = over.is_set()
        *lines, half = (half + file.read()).split("\n")
        for line in lines:
            event = json.loads(line)
            if event["event"] == "round" and not refused_shown:
                refused_shown = True
                for refused in skipped_text(progress.skipped):
                    show(refused)
            text = progress.add(event)
            if text is not None:
                show(text)
        if last:
            return
        over.wait(POLL_S)
