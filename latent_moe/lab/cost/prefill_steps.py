"""How many prefill steps a request waits for, and how many it lives through: the counting behind predict.

C requests in flight, ISL prompt tokens, OSL output tokens, a budget of B tokens a step (chunked prefill: decoding
requests take one token each, prompts fill the rest in order of arrival). A step with x prompt tokens counts as x/B
of a full prefill step.
"""

from latent_moe.errors import InputError

# Counting goes step by step; a table whose prompts take more steps than this is none of a server's.
MOST_STEPS = 100_000


def check_budget(concurrency: int, isl: int, osl: int, budget: int) -> None:
    """Raise InputError outside what the closed form describes."""
    if min(concurrency, isl, budget) < 1 or osl < 2:
        raise InputError(
            "concurrency, input length and token budget must be at least 1, output length at least 2"
        )
    if budget <= concurrency:
        raise InputError(
            f"a budget of {budget} tokens leaves no prompt tokens beside {concurrency} decoding requests"
        )
    steps = prefill_steps_in_a_life(concurrency, isl, budget)
    if steps > osl - 1:
        raise InputError(
            f"{steps:g} prefill steps do not fit the {osl - 1} steps of a request's life: no closed form there"
        )


def prefill_steps_in_a_life(concurrency: int, isl: int, budget: int) -> float:
    """n = C ISL / B: while one request lives, all C prompts are prefilled once."""
    return concurrency * isl / budget


def steps_to_first_token(concurrency: int, isl: int, budget: int) -> float:
    """Mean over C prompts that arrive at once of the full prefill steps until the first token.

    The first 2 B/ISL prompts would take one step and so on, were it not for the decode tokens of the prompts that
    are done, which take part of each later step's budget: 2.75 for C = 8, 4.875 for C = 16 at 8192 of 16384 tokens.
    An upper bound when the prompts do not arrive at once: staggered ones wait for fewer.
    """
    if budget <= concurrency:
        raise InputError(
            f"a budget of {budget} tokens leaves no prompt tokens beside {concurrency} decoding requests"
        )
    if concurrency * isl > MOST_STEPS * budget:
        raise InputError(
            f"{concurrency} prompts of {isl} tokens do not fit {MOST_STEPS} steps of {budget} tokens"
        )
    clock, prefilled, done, waited = 0.0, 0, 0, 0.0
    while done < concurrency:
        room = min(budget - done, concurrency * isl - prefilled)
        prefilled += room
        clock += room / budget
        finished = prefilled // isl - done
        waited += finished * clock
        done += finished
    return waited / concurrency
