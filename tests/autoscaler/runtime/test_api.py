"""The admin API over real sockets on loopback: what it shows, what it refuses, and what its directives do."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec
import pytest

from autoscaler.domain.base import Duration, InstanceId, ReplicaId
from autoscaler.domain.directives import Directives, Pause
from autoscaler.domain.faults import Unreachable
from autoscaler.runtime.api import Api, ApiSettings, changed_directives
from autoscaler.runtime.loop import PoolLoop
from tests.support.memory_ledger import MemoryLedger
from tests.support.pool_world import PoolWorld, services
from tests.support.virtual_time import VirtualClock

TOKEN = "a-token-for-tests"


class HandClock:
    """A clock that a test moves by hand; waiting is real."""

    def __init__(self) -> None:
        self.at = 1_700_000_000.0

    def now(self) -> Any:
        return self.at

    async def sleep(self, wait: Duration) -> None:
        await asyncio.sleep(wait)


class Scene:
    """One pool that has made one tick, its API, and a client. Nothing ticks by itself."""

    def __init__(self, base: str, world: PoolWorld, ledger: MemoryLedger, loop: PoolLoop, clock: HandClock) -> None:
        self.base, self.world, self.ledger, self.loop, self.clock = base, world, ledger, loop, clock
        self.token: str | None = TOKEN

    async def ask(self, method: str, path: str, **options: Any) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        async with (
            aiohttp.ClientSession(headers=headers) as client,
            client.request(method, self.base + path, **options) as answer,
        ):
            kind = answer.headers["Content-Type"]
            return answer.status, await (answer.json() if kind == "application/json" else answer.text())

    async def post(self, what: str, body: object = None) -> tuple[int, Any]:
        return await self.ask("POST", f"/v1/pools/p/{what}", json=body)


@asynccontextmanager
async def scene(token: str | None = TOKEN) -> AsyncIterator[Scene]:
    clock = HandClock()
    world, ledger = PoolWorld(clock), MemoryLedger()
    shared = services(clock, ledger)
    loop = PoolLoop(world.parts(), shared)
    loops = {world.name: loop}
    shared.metrics.watch(lambda: [one.seen() for one in loops.values()], clock.now)
    api = Api(ApiSettings(port=0, token=token), loops, shared)
    port = api.bind()
    api.start()
    try:
        await loop.tick()
        clock.at += 15
        await loop.tick()
        yield Scene(f"http://127.0.0.1:{port}", world, ledger, loop, clock)
    finally:
        await api.close()
    with socket.socket() as again:
        again.bind(("127.0.0.1", port))


async def test_the_list_of_pools_says_what_each_does_and_why() -> None:
    async with scene() as here:
        here.clock.at += 3
        status, (pool,) = await here.ask("GET", "/v1/pools")
        assert status == 200
        assert {key: pool[key] for key in ("name", "mode", "phases", "wanted", "target", "trust", "age_s")} == {
            "name": "p",
            "mode": "act",
            "phases": {"loading": 2},
            "wanted": 2,
            "target": 2,
            "trust": "trust",
            "age_s": 3.0,
        }
        assert pool["capacity"]["held"] == 2.0
        assert pool["sentence"]
        assert pool["alarms"] == []


async def test_one_pool_shows_everything_that_explains_it() -> None:
    async with scene() as here:
        status, pool = await here.ask("GET", "/v1/pools/p")
        assert status == 200
        assert pool["bounds"] == {"min": 1, "max": 10, "fallback": None}
        assert sorted(one["id"] for one in pool["replicas"]) == ["memory-1:8000", "memory-2:8000"]
        assert [one["policy"] for one in pool["opinions"]] == ["0:asks"]
        assert pool["directives"]["pause"] == "none"
        assert isinstance(pool["blocks"], list)


async def test_a_pool_before_its_first_decision_says_so() -> None:
    async with scene() as here:
        here.loop.status = type(here.loop.status)(here.loop.parts)
        _, (short,) = await here.ask("GET", "/v1/pools")
        _, full = await here.ask("GET", "/v1/pools/p")
        assert (short["sentence"], short["target"], full["replicas"]) == ("no decision yet", None, [])
        status, answer = await here.ask("GET", "/readyz")
        assert (status, answer["why"]) == (503, {"p": "no tick yet"})


async def test_decisions_come_from_the_ledger_newest_first() -> None:
    async with scene() as here:
        status, found = await here.ask("GET", "/v1/pools/p/decisions?limit=5")
        assert status == 200
        assert [one["sequence"] for one in found] == [2, 1]
        assert found[1]["actions"] == [f"launch:{token}" for token in here.world.compute.launched]
        status, answer = await here.ask("GET", "/v1/pools/p/decisions?limit=0")
        assert (status, answer) == (422, {"detail": "limit: Input should be greater than or equal to 1"})
        here.ledger.faults.fail("summaries", Unreachable("locked"))
        status, answer = await here.ask("GET", "/v1/pools/p/decisions")
        assert (status, answer) == (503, {"detail": "the ledger does not answer: locked"})


async def test_health_is_about_the_age_of_the_last_tick_and_readiness_about_what_it_kept() -> None:
    async with scene() as here:
        assert await here.ask("GET", "/healthz") == (200, {"alive": True, "stuck": []})
        assert await here.ask("GET", "/readyz") == (200, {"ready": True, "why": {}})
        here.clock.at += 76  # more than five ticks
        assert await here.ask("GET", "/healthz") == (503, {"alive": False, "stuck": ["p"]})
        here.ledger.faults.fail("save", Unreachable("disk full"))
        await here.loop.tick()
        assert (await here.ask("GET", "/healthz"))[0] == 200
        status, answer = await here.ask("GET", "/readyz")
        assert status == 503
        assert "disk full" in answer["why"]["p"]


async def test_metrics_show_the_pool() -> None:
    async with scene() as here:
        here.clock.at += 2
        status, text = await here.ask("GET", "/metrics")
        assert status == 200
        for line in (
            'autoscaler_desired_units{pool="p"} 2.0',
            'autoscaler_replicas{phase="loading",pool="p"} 2.0',
            'autoscaler_trust{level="trust",pool="p"} 1.0',
            'autoscaler_trust{level="hold",pool="p"} 0.0',
            'autoscaler_tick_age_seconds{pool="p"} 2.0',
            'autoscaler_tick_seconds_count{pool="p"} 2.0',
            'autoscaler_requests_cut_total{pool="p"} 0.0',
            'autoscaler_foreign_machines{pool="p"} 0.0',
        ):
            assert line in text.splitlines()


async def test_an_unknown_pool_or_path_is_one_clear_line() -> None:
    async with scene() as here:
        assert await here.ask("GET", "/v1/pools/q") == (404, {"detail": "no pool 'q'; there are: p"})
        assert await here.ask("GET", "/nothing") == (404, {"detail": "Not Found"})
        assert (await here.ask("DELETE", "/v1/pools"))[0] == 405


WRITES = [
    ("pause", {"direction": "in"}),
    ("resume", None),
    ("at-least", {"units": 2, "for_s": 60}),
    ("drain", {"replica": "memory-1:8000"}),
    ("replace", {"replica": "memory-1:8000"}),
    ("protect", {"instance": "memory-1", "on": True}),
]


async def test_without_a_configured_token_nothing_is_written_and_it_says_why() -> None:
    async with scene(token=None) as here:
        for what, body in WRITES:
            status, answer = await here.post(what, body)
            assert status == 403
            assert "no token is configured" in answer["detail"]
        assert here.ledger.said_by == []


@pytest.mark.parametrize("token", [None, "wrong", "", "a-token-for-tests-and-more", "ключ"])
async def test_a_missing_or_wrong_token_writes_nothing(token: str | None) -> None:
    async with scene() as here:
        here.token = token
        for what, body in WRITES:
            assert await here.post(what, body) == (401, {"detail": "a valid bearer token is needed"})
        assert here.ledger.said_by == []


async def test_each_directive_changes_its_part_and_nothing_else() -> None:
    async with scene() as here:
        for what, body in WRITES:
            status, answer = await here.post(what, body)
            assert (status, isinstance(answer, dict)) == (200, True)
        said = here.ledger.said[here.world.name]
        assert said.pause is Pause.NONE
        assert said.at_least is not None
        assert (said.at_least.units, said.at_least.until) == (2, here.clock.at + 60)
        assert said.drain == said.replace == {"memory-1:8000"}
        assert said.protect == {"memory-1"}
        assert {by for _, _, by in here.ledger.said_by} == {"api"}
        assert here.ledger.said_by[0][1].pause is Pause.IN
        await here.post("protect", {"instance": "memory-1", "on": False})
        await here.post("at-least", {"units": 0, "for_s": 1})
        said = here.ledger.said[here.world.name]
        assert (said.protect, said.at_least) == (frozenset(), None)


async def test_directives_that_come_at_once_lose_none() -> None:
    async with scene() as here:
        here.ledger.faults.delay["direct"] = 0.01
        names = [f"i{number}" for number in range(10)]
        await asyncio.gather(*(here.post("protect", {"instance": name}) for name in names))
        assert here.ledger.said[here.world.name].protect == set(names)


BAD: list[tuple[str, object, str]] = [
    ("pause", {"direction": "sideways"}, "direction: "),
    ("pause", {"direction": 1}, "direction: "),
    ("pause", {"direction": "in", "extra": 1}, "extra: "),
    ("pause", None, "body: "),
    ("pause", [], "body: "),
    ("at-least", {"units": -1, "for_s": 60}, "units: "),
    ("at-least", {"units": "3", "for_s": 60}, "units: "),
    ("at-least", {"units": 1.5, "for_s": 60}, "units: "),
    ("at-least", {"units": True, "for_s": 60}, "units: "),
    ("at-least", {"units": 2}, "for_s: "),
    ("at-least", {"units": 2, "for_s": 0}, "for_s: "),
    ("at-least", {"units": 2, "for_s": 1e12}, "for_s: "),
    ("drain", {}, "replica: "),
    ("protect", {"instance": "x", "on": "yes"}, "on: "),
]


async def test_a_bad_body_is_refused_with_the_field() -> None:
    async with scene() as here:
        for what, body, says in BAD:
            status, answer = await here.post(what, body)
            assert status == 422, (what, body)
            assert says in answer["detail"]
            assert "\n" not in answer["detail"]
        assert here.ledger.said_by == []


async def test_what_the_pools_max_does_not_allow_is_a_conflict() -> None:
    async with scene() as here:
        status, answer = await here.post("at-least", {"units": 11.0, "for_s": 60})
        assert (status, answer) == (409, {"detail": "units: 11 is more than the pool's max of 10"})
        assert here.ledger.said_by == []


async def test_a_body_that_is_no_json_is_refused() -> None:
    async with scene() as here:
        headers = {"Content-Type": "application/json"}
        status, answer = await here.ask("POST", "/v1/pools/p/pause", data=b"{", headers=headers)
        assert status == 422
        assert "\n" not in answer["detail"]


async def test_a_replica_that_is_not_there_is_named_with_those_that_are() -> None:
    async with scene() as here:
        status, answer = await here.post("drain", {"replica": "x:1"})
        assert status == 404
        assert answer["detail"] == "replica: pool p has no 'x:1'; it has memory-1:8000, memory-2:8000"


async def test_a_ledger_that_is_gone_is_told_and_nothing_is_half_written() -> None:
    async with scene() as here:
        here.ledger.faults.fail("directives", Unreachable("disk gone"))
        assert await here.post("resume") == (503, {"detail": "the ledger does not answer: disk gone"})
        here.ledger.faults.mend("directives")
        here.ledger.faults.fail("direct", Unreachable("read-only"))
        assert await here.post("resume") == (503, {"detail": "the ledger does not answer: read-only"})


async def test_marks_of_replicas_that_are_gone_are_forgotten() -> None:
    async with scene() as here:
        old = Directives(drain=frozenset({ReplicaId("old:1"), ReplicaId("memory-1:8000")}))
        here.ledger.said[here.world.name] = old
        await here.post("resume")
        assert here.ledger.said[here.world.name].drain == {"memory-1:8000"}


async def test_a_directive_wakes_the_pool() -> None:
    async with scene() as here:
        woken: list[str] = []
        here.loop.wake = woken.append  # type: ignore[assignment,method-assign]
        await here.post("pause", {"direction": "both"})
        assert woken == ["directive"]


def test_one_change_of_the_directives_is_a_function() -> None:
    known = Directives(protect=frozenset({InstanceId("a")}))
    assert changed_directives(known, {"protect": InstanceId("b")}).protect == {"a", "b"}
    assert changed_directives(known, {"unprotect": InstanceId("a")}).protect == frozenset()
    assert changed_directives(known, {"pause": Pause.OUT}) == msgspec.structs.replace(known, pause=Pause.OUT)


def test_an_address_that_is_not_here_is_one_clear_line() -> None:
    shared = services(VirtualClock(), MemoryLedger())
    with pytest.raises(Unreachable, match=r"cannot listen on 192\.0\.2\.1:0") as caught:
        Api(ApiSettings(host="192.0.2.1", port=0), {}, shared).bind()
    assert "\n" not in str(caught.value)


async def test_a_client_of_another_installation_is_refused_and_changes_nothing() -> None:
    async with scene() as here:
        theirs = {"X-Autoscaler-Installation": "elsewhere"}
        status, told = await here.ask("POST", "/v1/pools/p/pause", json={"direction": "both"}, headers=theirs)
        assert status == 409
        assert told == {"detail": "this daemon is of installation test, not elsewhere"}
        assert (await here.ledger.directives(here.world.name)).pause.value == "none"
        ours = {"X-Autoscaler-Installation": "test"}
        assert (await here.ask("POST", "/v1/pools/p/pause", json={"direction": "both"}, headers=ours))[0] == 200


async def test_a_machine_is_protected_under_one_name_however_it_was_given() -> None:
    async with scene() as here:
        assert (await here.post("protect", {"instance": "memory-1:8000"}))[0] == 200
        assert (await here.ledger.directives(here.world.name)).protect == {"memory-1"}
        assert (await here.post("protect", {"instance": "memory-1", "on": False}))[0] == 200
        assert (await here.ledger.directives(here.world.name)).protect == frozenset()


async def test_the_api_describes_itself() -> None:
    async with scene() as here:
        status, document = await here.ask("GET", "/openapi.json")
        assert status == 200
        assert "/v1/pools/{name}/protect" in document["paths"]
