"""A stand-in for vLLM where the real one would take a minute a boot: the same command lines, real processes, real HTTP.

What it answers is invented; the tests that use it look at processes and files, never at speeds. STAND_IN_FAULT (the
server's environment) and STAND_IN_CLIENT (everybody's) make it fail.
"""
