"""Two hosts made of network namespaces on this machine, joined by one cable, and commands under torchrun on both."""

import os
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

ADDRESSES = ("10.91.7.1", "10.91.7.2")


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


class Hosts:
    """`names` of two network namespaces, each with a cable to a switch in a third."""

    def __init__(self) -> None:
        self.names = [f"lm{os.getpid()}{side}" for side in "ab"]
        self.switch = f"lm{os.getpid()}s"

    def make(self) -> None:
        ip("netns", "add", self.switch)
        ip("-n", self.switch, "link", "add", "br0", "type", "bridge")
        ip("-n", self.switch, "link", "set", "br0", "up")
        for port, (name, address) in enumerate(zip(self.names, ADDRESSES, strict=True)):
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
            far = f"p{port}"
            ip("link", "add", "v0", "netns", name, "type", "veth", "peer", "name", far, "netns", self.switch)
            ip("-n", self.switch, "link", "set", far, "master", "br0", "up")
            ip("-n", name, "addr", "add", f"{address}/24", "dev", "v0")
            ip("-n", name, "link", "set", "v0", "up")

    def cut(self) -> None:
        """Nothing arrives any more and neither host is told: its own link stays up."""
        ip("-n", self.switch, "link", "set", "p1", "nomaster")

    def remove(self) -> None:
        for name in [*self.names, self.switch]:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


@contextmanager
def two_hosts():
    """The hosts, or a skip with the reason."""
    if shutil.which("ip") is None:
        pytest.skip("no `ip` to make network namespaces with")
    hosts = Hosts()
    try:
        hosts.make()
    except subprocess.CalledProcessError as error:
        hosts.remove()
        pytest.skip(f"network namespaces cannot be made here: {error.stderr.strip()}")
    try:
        yield hosts
    finally:
        hosts.remove()


def agents(hosts: Hosts, folder: Path, *command: str, ranks: int = 2, more: dict[str, str] | None = None):
    """torchrun's agent on each host, in folder/<host>; their output goes to folder/<host>.out and .err."""
    started = []
    for name, address in zip(hosts.names, ADDRESSES, strict=True):
        words = ["ip", "netns", "exec", name, sys.executable, "-m", "torch.distributed.run"]
        words += ["--nnodes", "2", "--nproc-per-node", str(ranks), "--rdzv-backend", "c10d"]
        words += ["--rdzv-endpoint", f"{ADDRESSES[0]}:29517", "--local-addr", address]
        words += ["--rdzv-conf", f"read_timeout=5,is_host={int(address == ADDRESSES[0])}", "-m", *command]
        (folder / name).mkdir()
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)} | (more or {})
        with (folder / f"{name}.out").open("w") as out, (folder / f"{name}.err").open("w") as err:
            started.append(
                subprocess.Popen(
                    words, stdout=out, stderr=err, env=environment, cwd=folder / name, start_new_session=True
                )
            )
    return started


def ended(started, limit_s: float) -> float:
    """Seconds until every agent has ended; kills what is left at the limit and fails."""
    begin = time.monotonic()
    try:
        for agent in started:
            agent.wait(max(0.1, limit_s - (time.monotonic() - begin)))
    except subprocess.TimeoutExpired:
        pytest.fail(f"an agent still runs after {limit_s:g} s")
    finally:
        for agent in started:
            if agent.poll() is None:
                agent.kill()
                agent.wait()
    return time.monotonic() - begin
