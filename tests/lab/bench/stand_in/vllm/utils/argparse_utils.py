"""The client's parser class."""

from argparse import ArgumentParser

from vllm import received


class FlexibleArgumentParser(ArgumentParser):
    def parse_args(self, arguments):
        received(arguments)
        return super().parse_args(arguments)
