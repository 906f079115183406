"""Real vLLM, two arms, interleaved; and what their results say."""
