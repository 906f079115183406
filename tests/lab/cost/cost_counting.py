"""A token-by-token count of a scheduler, to hold the closed form against. Small cases only."""

from dataclasses import dataclass


@dataclass
class Request:
    """One request: prompt tokens left, output tokens so far, clock at arrival and at the first token."""

    left: int
    arrived: float
    made: int = 0
    first: float | None = None


def serve(concurrency, isl, osl, budget, prefill_time, decode_time, waves):
    """Mean (E2E, TTFT) of the requests of the middle waves, each finished request replaced at once.

    A step gives every decoding request one token and fills the budget with prompt tokens in order of arrival. With
    x of B prompt tokens it takes x/B of a prefill step and the rest of a decode step.
    """
    clock, finished = 0.0, []
    running = [Request(isl, 0.0) for _ in range(concurrency)]
    while len(finished) < concurrency * waves:
        room = budget - sum(1 for request in running if not request.left)
        used = 0
        done_prefill = []
        for request in running:
            if request.left:
                take = 0
                while request.left and room:
                    request.left, room, used, take = request.left - 1, room - 1, used + 1, take + 1
                if not request.left and take:
                    done_prefill.append(request)
            else:
                request.made += 1
        part = used / budget
        clock += part * prefill_time + (1 - part) * decode_time
        for request in done_prefill:
            request.made, request.first = 1, clock
        ended = [request for request in running if request.made >= osl]
        finished += [(clock - request.arrived, request.first - request.arrived) for request in ended]
        running = [request for request in running if request.made < osl] + [
            Request(isl, clock) for _ in ended
        ]
    middle = finished[concurrency : concurrency * (waves - 1)]
    return tuple(sum(values) / len(middle) for values in zip(*middle, strict=True))


def first_tokens(concurrency, isl, budget):
    """Prefill clock (in full steps) at which each of `concurrency` prompts that arrive at once gets its first token."""
    clock, tokens, left = 0.0, 0, [isl] * concurrency
    at = [0.0] * concurrency
    while any(left):
        room, used = budget - sum(1 for amount in left if not amount), 0
        ended = []
        for index, amount in enumerate(left):
            take = min(amount, room)
            left[index] -= take
            room, used = room - take, used + take
            if take and not left[index]:
                ended.append(index)
        clock += used / budget
        tokens += used
        for index in ended:
            at[index] = clock
    return at
