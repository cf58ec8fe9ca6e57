"""Machines for moto: a stand-in model server at the private address of each instance that a pool has launched.

moto hands out addresses of 127.0.0.0/8, which Linux answers, so a machine is a process that listens there. It starts
when the account shows it and is killed when the account says that it is gone, as a hypervisor would. And `Front` does
what moto's load balancers do not: it sends requests, round robin, to the targets that the account calls healthy.
"""

import asyncio
import contextlib
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp

from autoscaler.demo.children import Child
from tests.support import moto


class Machines:
    """What runs where; `ended_with` tells how many requests were inside each machine when it was ended."""

    def __init__(self, url: str, folder: Path, port: int, load_s: float) -> None:
        self._ec2 = moto.client(url, "ec2")
        self._folder, self._port, self._load_s = folder, port, load_s
        self._lock = threading.Lock()
        self.running: dict[str, Child] = {}
        self.ever: set[str] = set()

    def _listed(self) -> dict[str, str]:
        wanted = [
            {"Name": "tag-key", "Values": ["autoscaler:token"]},
            {"Name": "instance-state-name", "Values": ["pending", "running"]},
        ]
        answer = self._ec2.describe_instances(Filters=wanted)
        items = [item for one in answer["Reservations"] for item in one["Instances"]]
        return {item["InstanceId"]: item["PrivateIpAddress"] for item in items}

    def follow(self) -> None:
        """Start what is new, end what is gone."""
        listed = self._listed()
        with self._lock:
            for name in listed.keys() - self.running.keys():
                self.running[name] = self._start(name, listed[name])
                self.ever.add(name)
            for name in self.running.keys() - listed.keys():
                self.running.pop(name).stop(0)

    def _start(self, name: str, address: str) -> Child:
        command = [
            sys.executable, "-m", "autoscaler.demo.model_server", "--host", address, "--port", str(self._port),
            "--load-s", str(self._load_s), "--while-loading", "503", "--time-scale", "10",
            "--stats-file", str(self._folder / f"{name}.json"),
        ]  # fmt: skip
        return Child(command, world=self._folder, log=self._folder / f"{name}.log")

    def end(self) -> None:
        """End all of them."""
        with self._lock:
            for child in self.running.values():
                child.stop(0)
            self.running.clear()


@contextmanager
def machines(url: str, folder: Path, port: int, load_s: float) -> Iterator[Machines]:
    """Follow the account until the block ends."""
    one, stop = Machines(url, folder, port, load_s), threading.Event()

    def follow() -> None:
        while not stop.wait(0.3):
            with contextlib.suppress(OSError):
                one.follow()

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield one
    finally:
        stop.set()
        thread.join(10)
        one.end()


class Front:
    """Sends requests to healthy targets, and counts what became of them."""

    def __init__(self, url: str, group: str, addresses: Any) -> None:
        self._elbv2 = moto.client(url, "elbv2")
        self._group, self._addresses = group, addresses
        self._turn = 0
        self.results: Counter[str] = Counter()

    def targets(self) -> list[str]:
        """`host:port` of what the account calls healthy, in a stable order."""
        answer = self._elbv2.describe_target_health(TargetGroupArn=self._group)
        healthy = [
            one["Target"] for one in answer["TargetHealthDescriptions"] if one["TargetHealth"]["State"] == "healthy"
        ]
        return sorted(f"{self._addresses(one['Id'])}:{one['Port']}" for one in healthy)

    async def load(self, clients: int, for_s: float, tokens: int) -> None:
        """`clients` at once, each asking again as soon as it was answered, for `for_s` seconds."""
        end = time.monotonic() + for_s
        async with aiohttp.ClientSession() as session:
            await asyncio.gather(*(self._client(session, end, tokens) for _ in range(clients)))

    async def _client(self, session: aiohttp.ClientSession, end: float, tokens: int) -> None:
        while time.monotonic() < end:
            # The account's word of this moment, as a load balancer has it: an old list would send to the drained.
            targets = await asyncio.to_thread(self.targets)
            if not targets:
                await asyncio.sleep(0.2)
                continue
            self._turn += 1
            await self._ask(session, targets[self._turn % len(targets)], tokens)

    async def _ask(self, session: aiohttp.ClientSession, target: str, tokens: int) -> None:
        body = {"prompt": "a " * 50, "max_tokens": tokens, "stream": True, "ignore_eos": True}
        try:
            async with session.post(f"http://{target}/v1/completions", json=body) as answer:
                text = await answer.text()
                whole = answer.status == 200 and text.rstrip().endswith("data: [DONE]")
                self.results["ok" if whole else f"status {answer.status}" if answer.status != 200 else "cut"] += 1
        except aiohttp.ClientError as error:
            self.results[type(error).__name__] += 1
