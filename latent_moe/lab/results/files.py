"""One file, of whatever kind, into runs, accuracies or greedy answers."""

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from latent_moe.errors import InputError
from latent_moe.lab.results.client_text import looks_like_client_text, runs_from_text
from latent_moe.lab.results.lm_eval import Accuracy, accuracies_from_json, looks_like_accuracy
from latent_moe.lab.results.parity import Answers, answers_from_json, looks_like_answers
from latent_moe.lab.results.published import looks_like_published, runs_from_published
from latent_moe.lab.results.run import Run, Warning
from latent_moe.lab.results.vllm_json import looks_like_run, run_from_json


@dataclass
class Results:
    """What was read: benchmark runs, accuracies, greedy answers, and what the reader must know about them."""

    runs: list[Run] = field(default_factory=list)
    accuracies: list[Accuracy] = field(default_factory=list)
    answers: list[Answers] = field(default_factory=list)
    warnings: list[Warning] = field(default_factory=list)

    def add(self, other: "Results") -> None:
        """Take over everything that `other` holds."""
        self.runs += other.runs
        self.accuracies += other.accuracies
        self.answers += other.answers
        self.warnings += other.warnings

    def named(self, arm: str) -> "Results":
        """The same with `arm` wherever a file names none itself."""
        self.runs = [replace(item, arm=item.arm or arm) for item in self.runs]
        self.accuracies = [replace(item, arm=item.arm or arm) for item in self.accuracies]
        self.answers = [replace(item, arm=item.arm or arm) for item in self.answers]
        return self


class NotAResult(InputError):
    """The file can be read, but holds nothing that the table knows."""


def read_file(path: Path) -> Results:
    """Sniff the content and read it. Raises InputError (NotAResult where the content is of another kind)."""
    return read_text(_text(path), str(path))


def read_text(text: str, where: str) -> Results:
    """As `read_file`, for text that is already here."""
    if not text.strip():
        raise InputError(f"{where}: empty file")
    if text.lstrip()[0] in "{[" and not _is_log(text):
        return _from_objects(_decode(text, where), where)
    if looks_like_client_text(text):
        return Results(runs=runs_from_text(text, where))
    if looks_like_published(text):
        return Results(runs=runs_from_published(text, where))
    raise NotAResult(
        f"{where}: neither a benchmark result, a client's log, a published table nor an lm_eval result"
    )


def _text(path: Path) -> str:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    if b"\0" in data:
        raise NotAResult(f"{path}: binary file")
    return data.decode("utf-8-sig", errors="replace")


def _is_log(text: str) -> bool:
    """A log may begin with "[time] ...": it is one if its first line is no JSON but a result block follows."""
    try:
        json.JSONDecoder().raw_decode(text.lstrip())
    except (ValueError, RecursionError):
        return looks_like_client_text(text)
    return False


def _decode(text: str, where: str) -> list[Any]:
    """Every JSON value of the file: the client's --append-result writes one after the other."""
    decoder, position, found = json.JSONDecoder(), 0, []
    body = text.strip()
    while position < len(body):
        try:
            value, position = decoder.raw_decode(body, position)
        except json.JSONDecodeError as error:
            raise InputError(
                f"{where}: not whole JSON (line {error.lineno}, column {error.colno})"
            ) from error
        except (ValueError, RecursionError) as error:
            raise InputError(f"{where}: not usable JSON ({type(error).__name__})") from error
        found += value if isinstance(value, list) else [value]
        while position < len(body) and body[position].isspace():
            position += 1
    return found


def _from_objects(objects: list[Any], where: str) -> Results:
    results = Results()
    for index, raw in enumerate(objects, start=1):
        name = where if len(objects) == 1 else f"{where} record {index}"
        if looks_like_run(raw):
            results.runs.append(run_from_json(raw, name))
        elif looks_like_accuracy(raw):
            results.accuracies += accuracies_from_json(raw, name)
        elif looks_like_answers(raw):
            results.answers.append(answers_from_json(raw, name))
        else:
            raise NotAResult(f"{name}: JSON, but no benchmark result, lm_eval result or greedy answers")
    if not objects:
        raise NotAResult(f"{where}: an empty list")
    return results
