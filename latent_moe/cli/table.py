"""``latent-moe table``: result files into the table with deltas, intervals and verdicts."""

import argparse
import json
from pathlib import Path
from typing import Any

HELP = (
    "Result files of vLLM's benchmark client (JSON or printed text), folders of `bench`, and published tables into the "
    "table with deltas, 95 % intervals and verdicts. Exit 1 where a primary metric could not be compared."
)
_FORMATS = ("markdown", "csv", "json")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the verb."""
    parser.add_argument(
        "paths",
        nargs="+",
        metavar="PATH",
        help="result files or folders; each is an arm unless it names its arms",
    )
    parser.add_argument("--baseline", metavar="NAME", help="the arm that the other is compared with")
    parser.add_argument("--candidate", metavar="NAME", help="the arm that is judged")
    parser.add_argument(
        "--margin",
        type=float,
        default=1.0,
        metavar="PCT",
        help="changes shown to be smaller than this, either way, are told as equivalent (1)",
    )
    parser.add_argument("--format", choices=_FORMATS, default="markdown", help="what to print without --json")
    parser.add_argument(
        "--output", metavar="FILE", help="write it into FILE as well (.md, .csv or .json chooses the format)"
    )


def run(args: argparse.Namespace) -> int:
    """Read, compare, print."""
    from latent_moe.cli.output import clean, emit
    from latent_moe.errors import InputError
    from latent_moe.files import check_output
    from latent_moe.lab.results import comparison, read_results

    if not 0 < args.margin < 100:
        raise InputError(f"--margin {args.margin:g} is no percentage between 0 and 100")
    if args.output is not None:
        check_output(args.output, args.paths, "--output")
    results = read_results(args.paths)
    tables = comparison.compare_each(results, args.baseline, args.candidate, args.margin)
    same = [_same_answers(results, table) for table in tables]
    answer = comparison.tables_as_dict(tables) | same[0]
    if len(tables) > 1:
        answer["comparisons"] = [
            {"candidate": table.candidate, **found} for table, found in zip(tables, same, strict=True)
        ]
    texts = {"json": lambda: json.dumps(clean(answer), indent=2), **_writers(tables, same)}
    if args.output is not None:
        _write(Path(args.output), texts, args.format)
    emit(args, answer, texts[args.format]())
    return 0 if all(table.comparable for table in tables) and _accuracies_compare(tables, same) else 1


def _accuracies_compare(tables: list, same: list[dict[str, Any]]) -> bool:
    """False where accuracies are all there is and none of them can be compared."""
    verdicts = [item["verdict"] for found in same for item in found["accuracy"]]
    return any(table.rows for table in tables) or not verdicts or set(verdicts) != {"not_comparable"}


def _writers(tables: list, same: list[dict[str, Any]]) -> dict[str, Any]:
    from latent_moe.lab.results import render

    def markdown() -> str:
        parts = []
        for table, found in zip(tables, same, strict=True):
            parts += [render.markdown(table), _parity_line(found), *_accuracy_lines(found)]
        return "\n\n".join(filter(None, parts))

    return {"markdown": markdown, "csv": lambda: render.csv_text(*tables)}


def _same_answers(results, table) -> dict[str, Any]:
    """Parity and accuracy of the two arms, where the results hold them."""
    from latent_moe.errors import AnswerNo
    from latent_moe.lab.results.accuracy import compare_all
    from latent_moe.lab.results.parity import compare_greedy

    if table.candidate is None:
        return {
            "parity": None,
            "accuracy": [],
            "accuracies": [vars(item) for item in results.accuracies],
        }
    arms = {item.arm: item for item in results.answers}
    one, other = arms.get(table.baseline), arms.get(table.candidate)
    found = compare_all(results.accuracies, table.baseline, table.candidate)
    held = {item.arm: item.key for item in results.accuracies}
    if not found and not table.rows and {table.baseline, table.candidate} <= held.keys():
        tasks = [" ".join(held[arm]).strip() for arm in (table.baseline, table.candidate)]
        raise AnswerNo(f"not comparable: no accuracy stands in both arms ({tasks[0]} against {tasks[1]})")
    return {
        "parity": compare_greedy(one, other).as_dict() if one and other else None,
        "accuracy": [item.as_dict() for item in found],
    }


def _parity_line(answer: dict[str, Any]) -> str:
    parity = answer["parity"]
    if parity is None:
        return ""
    share = f"{100 * parity['same_tokens_share']:.2f} % of {parity['tokens']} greedy tokens are the same"
    parts = [f"Same answers: {share}, {parity['identical_prompts']} of {parity['prompts']} prompts whole"]
    if parity["max_logprob_diff"] is not None:
        parts.append(f"largest logprob difference {parity['max_logprob_diff']:.2g} nats")
    leads = sorted(parity["margins"].values())
    if leads:
        span = f"{leads[0]:.2g}" + (f" to {leads[-1]:.2g}" if len(leads) > 1 else "")
        parts.append(f"where answers part, the baseline's token led its second best by {span} nats")
    if parity["prompt_tokens"]:
        average, most = parity["mean_prompt_logprob_diff"], parity["max_prompt_logprob_diff"]
        parts.append(
            f"logprobs of {parity['prompt_tokens']} prompt tokens differ by {average:.2g} nats on average, {most:.2g} at most"
        )
    return "; ".join(parts) + "."


def _accuracy_lines(answer: dict[str, Any]) -> list[str]:
    alone = [_alone_line(item) for item in answer.get("accuracies", [])]
    return alone + [_accuracy_line(item) for item in answer["accuracy"]]


def _alone_line(item: dict[str, Any]) -> str:
    name = f"{item['task']} {item['metric']} {item['filter']}".strip()
    error = "" if item["stderr"] is None else f" ± {item['stderr']:.4f}"
    questions = "" if item["questions"] is None else f", {item['questions']} questions"
    shots = "" if item["shots"] is None else f", {item['shots']}-shot"
    return f"{name}: {item['value']:.4f}{error}{questions}{shots}."


def _accuracy_line(item: dict[str, Any]) -> str:
    name = f"{item['task']} {item['metric']} {item['filter']}".strip()
    values = (
        f"{name}: {item['baseline']:.4f} against {item['candidate']:.4f}, {item['verdict'].replace('_', ' ')}"
    )
    return f"{values} ({item['reason'] or _probability(item)})."


def _probability(item: dict[str, Any]) -> str:
    return f"p = {item['p_value']:.2g}, {item['test']}"


def _write(path: Path, texts: dict[str, Any], default: str) -> None:
    from latent_moe.errors import InputError

    chosen = {".md": "markdown", ".csv": "csv", ".json": "json"}.get(path.suffix.lower(), default)
    try:
        path.write_text(texts[chosen]().rstrip("\n") + "\n", encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    except UnicodeEncodeError as error:
        raise InputError(
            f"{path}: a name in the results is no text that can be written ({error.reason})"
        ) from error
