"""Ranks that torchrun or srun started, on one host or on several: rank 0 drives the command, the others follow.

Rank 0 runs the verb as on one machine and prints; wherever the verb launches ranks, its function goes to every rank of
the job and the results come back. Beside the collectives each rank keeps one connection with rank 0, over which both
say once a second that they live: a rank that dies, a host that goes or a link that is cut ends the whole job within
SILENCE_S with a line that names it, also while a collective waits for nobody.

On one machine the launcher of `latent_moe.ranks` stays. Eight ranks and one empty call took it 4.8 to 5.1 s and
torchrun's elastic agent (`torchrun --standalone --nproc-per-node 8`) 8.4 to 13.7 s (measured 2026-12-01, three runs
each, torch 2.13 on two CPU cores that others used too): the agent's ranks import torch one by one, the fork server's
share one import. The agent has no time limit for a call, names the rank that failed but not the cause, and over a cut
link waits beyond its own limits; what is here would be needed beside it in any case.
"""

import os
import pickle
import queue
import re
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener, wait
from typing import Any

from latent_moe.errors import InputError, LatentMoEError

JOIN_S, BEAT_S, SILENCE_S, LAUNCHER_S = 60.0, 1.0, 18.0, 4.0
# A peer's complaint may arrive before its cause does.
CAUSE_S = 0.5


@dataclass(frozen=True)
class Place:
    """This process's place in the job that started it; `address` and `port` are where the ranks find each other."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    nodes: int
    address: str
    port: int
    under_torchrun: bool
    # torchrun's agent keeps the store; elsewhere rank 0 does.
    agent_store: bool
    run: str


def place_of(environ: Mapping[str, str] = os.environ) -> Place | None:
    """The place that torchrun's variables say, or those of an srun step; None where no job started this process.

    Raises InputError for variables that are not numbers.
    """
    try:
        if "TORCHELASTIC_RUN_ID" in environ and int(environ["WORLD_SIZE"]) > 1:
            return _under_torchrun(environ)
        if "SLURM_STEP_ID" in environ and int(environ.get("SLURM_STEP_NUM_TASKS", 1)) > 1:
            return _under_srun(environ)
    except (KeyError, ValueError) as error:
        raise InputError(f"the launcher's variables cannot be read ({error})") from error
    return None


def _under_torchrun(environ: Mapping[str, str]) -> Place:
    return Place(
        rank=int(environ["RANK"]),
        size=int(environ["WORLD_SIZE"]),
        local_rank=int(environ["LOCAL_RANK"]),
        local_size=int(environ["LOCAL_WORLD_SIZE"]),
        nodes=int(environ["GROUP_WORLD_SIZE"]),
        address=environ["MASTER_ADDR"],
        port=int(environ["MASTER_PORT"]),
        under_torchrun=True,
        agent_store=environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        run=f"{environ['TORCHELASTIC_RUN_ID']}/{environ.get('TORCHELASTIC_RESTART_COUNT', 0)}",
    )


def _under_srun(environ: Mapping[str, str]) -> Place:
    job, step = environ["SLURM_JOB_ID"], environ["SLURM_STEP_ID"]
    size, nodes = int(environ["SLURM_STEP_NUM_TASKS"]), int(environ["SLURM_STEP_NUM_NODES"])
    return Place(
        rank=int(environ["SLURM_PROCID"]),
        size=size,
        local_rank=int(environ["SLURM_LOCALID"]),
        local_size=-(-size // nodes),
        nodes=nodes,
        address=environ.get("MASTER_ADDR") or first_host(environ["SLURM_STEP_NODELIST"]),
        # Jobs that share a host take different ports.
        port=int(environ.get("MASTER_PORT") or 20000 + (int(job) * 7 + int(step)) % 10000),
        under_torchrun=False,
        agent_store=False,
        run=f"{job}.{step}",
    )


def first_host(nodelist: str) -> str:
    """The first host of Slurm's list: "gpu[03-05,9],other" -> "gpu03"."""
    prefix, number = re.match(r"([^,\[]*)(?:\[(\d+))?", nodelist).groups()  # type: ignore[union-attr]
    return prefix + (number or "")


def take_part(place: Place, command: Callable[[], int]) -> int:
    """On rank 0 run `command` with every launch on the job's ranks; elsewhere follow. Returns the exit code."""
    if place.rank:
        return _Follower(place).follow()
    from latent_moe.parallel import launcher

    driver = _Driver(place)
    code = 2
    try:
        with launcher(driver.launch):
            code = command()
        return code
    except LatentMoEError as error:
        code = 2 if isinstance(error, InputError) else 1
        raise
    finally:
        driver.dismiss(code)


class _Peer:
    """A connection that several threads write to, and when its other end was last heard."""

    def __init__(self, connection: Connection, name: str):
        self.connection, self.name, self.heard = connection, name, time.monotonic()
        self._writing = threading.Lock()

    def send(self, *message: Any) -> None:
        """Send unless the other end is gone or takes nothing; the one who listens says so."""
        if self._writing.acquire(timeout=BEAT_S):
            try:
                self.connection.send(message)
            except OSError:
                pass
            finally:
                self._writing.release()

    def receive(self) -> tuple | None:
        """The message that is there, None when the other end is gone."""
        try:
            message = self.connection.recv()
        except (EOFError, OSError):
            return None
        self.heard = time.monotonic()
        return message

    @property
    def silent(self) -> bool:
        """Whether the other end has not been heard for too long."""
        return time.monotonic() - self.heard > SILENCE_S


class _Member:
    """What rank 0 and its followers share: the store, this host's name, the watch over peers and launcher."""

    def __init__(self, place: Place):
        self.place, self.calls = place, 0
        self.address = _own_address(place.address, place.port)
        self.name = f"rank {place.rank} on {socket.gethostname()} ({self.address})"
        self.store = _store(place)
        self._launcher_pid = os.getppid()

    def watch(self, peers: list[_Peer], hear: Callable[[_Peer, tuple | None], None]) -> None:
        """Beat, listen, and end this process where a peer is silent or the launcher is gone; never returns."""
        by_connection = {peer.connection: peer for peer in peers}
        beat = 0.0
        while True:
            for ready in wait(list(by_connection), BEAT_S / 4):
                peer = by_connection[ready]  # type: ignore[index]
                hear(peer, peer.receive())
            if time.monotonic() - beat > BEAT_S:
                beat = time.monotonic()
                for peer in peers:
                    peer.send("beat")
            for peer in peers:
                if peer.silent:
                    self.end(f"{peer.name} gave no sign of life for {SILENCE_S:g} s", peers, cut=True)
            if os.getppid() != self._launcher_pid:
                self.end(f"the launcher of {self.name} is gone", peers)
            self.check()

    def _end_launcher(self) -> None:
        """torchrun's agent waits over a cut link for its store, beyond any limit that it is given, and deaf to SIGTERM in
        that time."""
        deadline = time.monotonic() + LAUNCHER_S
        for number in (signal.SIGTERM, signal.SIGKILL):
            if os.getppid() == self._launcher_pid:
                os.kill(self._launcher_pid, number)
            while os.getppid() == self._launcher_pid and time.monotonic() < deadline:
                time.sleep(0.1)

    def check(self) -> None:
        """What else to look at with every beat."""

    def end(self, reason: str, peers: list[_Peer], code: int = 1, cut: bool = False) -> None:
        """Say why, let the peers end too, and leave, whatever the main thread waits for; `cut`: over a link that is cut."""
        with suppress(OSError):
            print(f"latent-moe: {reason}", file=sys.stderr, flush=True)
        for peer in peers:
            peer.send("end", code)
        if cut and self.place.under_torchrun:
            self._end_launcher()
        os._exit(code)

    def run(self, call: bytes, backend: str | None, timeout_s: float) -> Any:
        """This rank's part of a launch."""
        self.calls += 1
        fn, args = pickle.loads(call)
        import torch.distributed as dist

        result = fn(self._joined(backend, timeout_s), *args)
        dist.destroy_process_group()
        return result

    def _joined(self, backend: str | None, timeout_s: float):
        import torch
        import torch.distributed as dist

        from latent_moe.parallel import TensorParallel

        place = self.place
        backend = backend or ("nccl" if torch.cuda.is_available() else "gloo")
        if backend == "nccl" and torch.cuda.device_count() < place.local_size:
            raise InputError(
                f"{self.name}: {place.local_size} ranks need as many GPUs, {torch.cuda.device_count()} are there"
            )
        device = torch.device("cuda", place.local_rank) if backend == "nccl" else torch.device("cpu")
        if device.type == "cuda":
            torch.cuda.set_device(device)
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // place.local_size))
        interface = _interface(self.address)
        if interface:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
            os.environ.setdefault("NCCL_SOCKET_IFNAME", interface)
        store = dist.PrefixStore(f"call/{self.calls}", self.store)
        limit = timedelta(seconds=timeout_s)
        dist.init_process_group(backend, store=store, rank=place.rank, world_size=place.size, timeout=limit)
        return TensorParallel(place.rank, place.size, dist.group.WORLD, device, nodes=place.nodes)


class _Driver(_Member):
    """Rank 0: sends each launch to the followers, collects what they return, names the one that is lost."""

    def __init__(self, place: Place):
        super().__init__(place)
        self._answers: queue.Queue[tuple[int, Any]] = queue.Queue()
        self._owing: set[int] = set()
        self._deadline, self._limit_s = float("inf"), 0.0
        self._ended = False
        self._failures: list[tuple[float, _Peer, dict[str, Any]]] = []
        self.peers = self._gather()
        self._ranks = {id(peer): rank for rank, peer in self.peers.items()}
        everybody = list(self.peers.values())
        threading.Thread(target=self.watch, args=(everybody, self._hear), daemon=True).start()

    def _gather(self) -> dict[int, _Peer]:
        key = secrets.token_bytes(32)
        listener = Listener((self.address, 0), backlog=self.place.size, authkey=key)
        self.store.set("driver", f"{self.address} {listener.address[1]} {key.hex()}")
        arrived: queue.Queue[Connection] = queue.Queue()
        threading.Thread(target=_accept, args=(listener, arrived), daemon=True).start()
        peers: dict[int, _Peer] = {}
        deadline = time.monotonic() + JOIN_S
        while len(peers) < self.place.size - 1:
            try:
                connection = arrived.get(timeout=max(0.0, deadline - time.monotonic()))
                rank, name = connection.recv()
            except queue.Empty:
                absent = sorted(set(range(1, self.place.size)) - set(peers))
                raise LatentMoEError(f"rank {absent[0]} did not join within {JOIN_S:g} s") from None
            except (EOFError, OSError):
                continue
            peers[rank] = _Peer(connection, name)
        return peers

    def launch(self, _join, fn, tp: int, args: tuple, timeout_s: float, backend: str | None) -> list[Any]:
        """As `latent_moe.ranks.run_ranks`, on the ranks of the job. Raises InputError for another number of ranks."""
        if tp != self.place.size:
            raise InputError(f"tp {tp}: this job has {self.place.size} ranks")
        call = pickle.dumps((fn, args))
        self._owing, self._limit_s = set(self.peers), timeout_s
        self._deadline = time.monotonic() + timeout_s
        for peer in self.peers.values():
            peer.send("call", call, backend, timeout_s)
        try:
            results = {0: self.run(call, backend, timeout_s)}
        except InputError:
            raise
        except Exception as error:
            # Most often the effect of a peer that is gone: the watch names it, and ends this process.
            time.sleep(2 * CAUSE_S + BEAT_S)
            line = str(error).strip().split("\n")[0]
            raise LatentMoEError(f"{self.name} failed: {type(error).__name__}: {line}") from error
        while self._owing:
            rank, result = self._answers.get()
            results[rank] = pickle.loads(result)
            self._owing.discard(rank)
        self._deadline = float("inf")
        return [results[rank] for rank in sorted(results)]

    def _hear(self, peer: _Peer, message: tuple | None) -> None:
        if self._ended:
            return
        if message is None:
            self.end(f"{peer.name} died", list(self.peers.values()))
        elif message[0] == "result":
            self._answers.put((self._ranks[id(peer)], message[1]))
        elif message[0] == "failure":
            self._failures.append((time.monotonic(), peer, message[1]))

    def check(self) -> None:
        """The time limit of the launch under way, and a failure whose cause has had time to show."""
        now, everybody = time.monotonic(), list(self.peers.values())
        if self._failures and now - self._failures[0][0] > CAUSE_S:
            _, peer, failure = self._failures[0]
            text = failure["text"] if failure["is_input"] else f"{peer.name} failed: {failure['text']}"
            self.end(text, everybody, 2 if failure["is_input"] else 1)
        if now > self._deadline:
            late = self.peers[min(self._owing)].name if self._owing else self.name
            self.end(f"{late} gave no result within {self._limit_s:g} s", everybody)

    def dismiss(self, code: int) -> None:
        """Let the followers leave with the same exit code."""
        self._ended = True
        for peer in self.peers.values():
            peer.send("end", code)


class _Follower(_Member):
    """Any other rank: runs what rank 0 sends until rank 0 ends the job."""

    def follow(self) -> int:
        """Never returns while the job lives; the watch leaves with rank 0's exit code."""
        peer = _Peer(self._connected(), f"rank 0 at {self.place.address}")
        peer.send(self.place.rank, self.name)
        calls: queue.Queue[tuple] = queue.Queue()

        def hear(_: _Peer, message: tuple | None) -> None:
            if message is None:
                self.end(f"rank 0 died ({self.name} lost it)", [])
            elif message[0] == "end":
                sys.stdout.flush()
                os._exit(message[1])
            elif message[0] == "call":
                calls.put(message[1:])

        threading.Thread(target=self.watch, args=([peer], hear), daemon=True).start()
        while True:
            call, backend, timeout_s = calls.get()
            try:
                result = pickle.dumps(self.run(call, backend, timeout_s))
            except Exception as error:
                is_input = isinstance(error, InputError)
                text = str(error).strip().split("\n")[0]
                text = text if is_input else f"{type(error).__name__}: {text}"
                # Alive until rank 0 says end: the launcher would kill rank 0 before it could name the cause.
                peer.send("failure", {"is_input": is_input, "text": text})
            else:
                peer.send("result", result)

    def _connected(self) -> Connection:
        self.store.set_timeout(timedelta(seconds=JOIN_S))
        address, port, key = self.store.get("driver").decode().split()
        return Client((address, int(port)), authkey=bytes.fromhex(key))


def _accept(listener: Listener, arrived: "queue.Queue[Connection]") -> None:
    while True:
        # Whoever does not know the key is none of this job's ranks.
        with suppress(AuthenticationError, EOFError, OSError):
            arrived.put(listener.accept())


def _store(place: Place):
    import torch.distributed as dist

    keeper = not place.agent_store and place.rank == 0
    store = dist.TCPStore(
        place.address,
        place.port,
        is_master=keeper,
        timeout=timedelta(seconds=JOIN_S),
        wait_for_workers=False,
    )
    return dist.PrefixStore(f"latent_moe/{place.run}", store)


def _own_address(address: str, port: int) -> str:
    """This host's address on the way to another one."""
    try:
        family, _, _, _, target = socket.getaddrinfo(address, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    except OSError as error:
        raise InputError(f"{address}, where the ranks are to meet, cannot be reached ({error})") from error


def _interface(address: str) -> str | None:
    """The network interface that has this IPv4 address; None where that cannot be told."""
    import struct

    try:
        import fcntl
    except ImportError:
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with suppress(OSError):
                request = struct.pack("256s", name.encode()[:15])
                answer = fcntl.ioctl(probe.fileno(), 0x8915, request)  # SIOCGIFADDR
                if socket.inet_ntoa(answer[20:24]) == address:
                    return name
    return None
