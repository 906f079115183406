"""What another form of the tail would save in a step of the recording: from measured rows where there are some, else from
the cost model; with a band where the error is known.

T up to DECODE_UP_TO counts as a decode step, whose rows are those of captured graphs.
"""

from dataclasses import replace
from typing import Any

from latent_moe.config import KIMI_K3
from latent_moe.errors import InputError
from latent_moe.lab import recordings
from latent_moe.lab.cost import hardware, tail_timings
from latent_moe.lab.cost.savings import Savings, modelled, recorded
from latent_moe.lab.cost.tail import TAIL_NAMES
from latent_moe.lab.traces.tail_finder import TailFinding

DECODE_UP_TO = 256
# Half the width of a central 90 % interval, in standard deviations of a normal error.
BAND90 = 1.645


def tail_savings(finding: TailFinding, device: str | None, tp: int | None) -> dict[str, Any]:
    """{"savings": {form: {"step_ns", "band90_ns", "kind", "source"}}, "why_no_savings": text or None}.

    `device` is a name the cost model knows ("h200"), `tp` the ranks. A form that neither a recording nor the model knows
    is left out. `band90_ns` is None where no error is known, `step_ns` is positive where the other form is faster.
    """
    lacking = _lacking(finding, device, tp)
    if lacking or device is None or tp is None:
        return {"savings": {}, "why_no_savings": lacking}
    others = [form for form in TAIL_NAMES if form != finding.form]
    pairs = {form: _step(finding, form, device, tp) for form in others}
    return {"savings": {form: saving for form, saving in pairs.items() if saving}, "why_no_savings": None}


def _lacking(finding: TailFinding, device: str | None, tp: int | None) -> str | None:
    if finding.form in ("none", "unknown"):
        return "the form of the tail is not known"
    if finding.form not in TAIL_NAMES:
        return f"the cost model does not know the form {finding.form}"
    missing = {
        "the device (--hardware NAME)": device,
        "the number of ranks (--tp N)": tp,
        "T": finding.tokens,
        "H": finding.hidden,
        "L": finding.latent,
    }
    names = [name for name, value in missing.items() if not value]
    return f"not known from the recording: {', '.join(names)}" if names else None


def _step(finding: TailFinding, form: str, device: str, tp: int) -> dict[str, Any] | None:
    for source, savings in _sources(finding, form, device, tp):
        try:
            return _summed(finding, savings) | {"source": source}
        except InputError:
            continue
    return None


def _sources(finding: TailFinding, form: str, device: str, tp: int) -> list[tuple[str, Savings]]:
    """Recordings of this device, sizes and tp, those of a server's collectives first; then the cost model."""
    sources = []
    for folder in recordings.folders():
        manifest = recordings.load_manifest(folder)
        facts = manifest.parameters
        same = (facts.get("tp"), facts.get("hidden_size"), facts.get("latent_size")) == (
            tp,
            finding.hidden,
            finding.latent,
        )
        if (
            same
            and facts.get("collectives")
            and hardware.of_device(manifest.device) == device
            and (folder / "tails.csv").is_file()
        ):
            rows = tail_timings.read(folder)
            order = facts.get("communicator") != "vllm"
            sources.append((order, manifest.name, recorded(rows, tp, finding.form, form, manifest.name)))
    config = replace(KIMI_K3, hidden_size=finding.hidden or 0, latent_size=finding.latent)
    model = modelled(hardware.get(device), tp, config, finding.form, form)
    return [(name, savings) for _, name, savings in sorted(sources, key=lambda item: item[:2])] + [
        ("cost model", model)
    ]


def _summed(finding: TailFinding, savings: Savings) -> dict[str, Any]:
    """Over the tails of a mean step; errors of one source go the same way, so they add up."""
    per_tail = [(savings(tokens, tokens <= DECODE_UP_TO), count) for tokens, count in finding.tokens.items()]
    tails = sum(finding.tokens.values())
    layers = finding.layers or 1
    step_us = layers * sum(saving.us * count for saving, count in per_tail) / tails
    errors = [saving.error_us for saving, _ in per_tail]
    band = None
    if None not in errors:
        half = (
            BAND90
            * layers
            * sum(error * count for error, (_, count) in zip(errors, per_tail, strict=True) if error)
            / tails
        )
        band = [1e3 * (step_us - half), 1e3 * (step_us + half)]
    kinds = {saving.kind for saving, _ in per_tail}
    return {"step_ns": 1e3 * step_us, "band90_ns": band, "kind": ", ".join(sorted(kinds))}
