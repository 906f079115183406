"""A stand-in for vLLM where the real one would take a minute a start: the same command lines, real processes, real HTTP.

What it answers is invented; the tests that use it look at processes and files, never at speeds. STAND_IN_FAULT (the
server's environment) and STAND_IN_CLIENT (everybody's) make it fail; STAND_IN_RECEIVED names a file for what it is given.
"""

import json
import os


def received(arguments):
    """Keep a command's arguments and the tail of its environment, in the order in which commands come."""
    if path := os.environ.get("STAND_IN_RECEIVED"):
        with open(path, "a") as file:
            file.write(json.dumps([arguments, os.environ.get("LATENT_MOE_TAIL"), os.getcwd()]) + "\n")
