"""Somebody else's package: a distribution with a compute, balancer, probe, telemetry and a policy.

It is written to a folder as an installed distribution would be, so that finding, importing and building are the real
ones. Its adapters keep their world in memory and write every changing call into the file `journal`.
"""

from pathlib import Path

_ENTRY_POINTS = """
[autoscaler.compute]
acme = acme_things.compute
acme_broken = acme_things.broken
acme_bare = acme_things.bare
acme_needs = acme_things.needs

[autoscaler.balancer]
acme = acme_things.balancer

[autoscaler.probe]
acme = acme_things.probe

[autoscaler.telemetry]
acme = acme_things.telemetry

[autoscaler.policy]
acme_more = acme_things.policy
"""

_COMMON = """
from pathlib import Path

def told(journal, what):
    with Path(journal).open("a") as file:
        file.write(what + "\\n")
"""

_COMPUTE = """
import enum
from typing import Annotated, Literal
import msgspec
from autoscaler.domain.base import Duration, InstanceId
from autoscaler.domain.faults import Unreachable
from autoscaler.domain.replica import ComputeView, Instance, InstanceState, LaunchState, LaunchStatus
from acme_things.common import told

class Kind(enum.StrEnum):
    SMALL = "small"
    LARGE = "large"

class Disk(msgspec.Struct, frozen=True, kw_only=True):
    gib: Annotated[int, msgspec.Meta(ge=1, le=100)]
    kind: Literal["ssd", "hdd"] = "ssd"

class Settings(msgspec.Struct, frozen=True, kw_only=True):
    region: str
    journal: str = ""
    image: str = "standard"
    size: Kind = Kind.SMALL
    disks: tuple[Disk, ...] = ()
    root: Disk | None = None
    tags: dict[str, str] = {}
    boot: Duration = Duration(60.0)
    spread: bool = False
    bid: float | None = None
    machines: int = 0
    foreign: int = 0
    down: bool = False
    json: str = ""

    def __post_init__(self):
        if self.image == "cursed":
            raise ValueError("image: found 'cursed', allowed: any other")

def scope(settings):
    return settings.region

class AcmeCompute:
    def __init__(self, settings, context):
        self.settings, self.context, self.ended = settings, context, set()

    async def observe(self, pool, launches, not_older_than):
        if self.settings.down:
            raise Unreachable("acme does not answer")
        now = self.context.clock.now()
        def machine(name):
            return Instance(id=InstanceId(name), token="t", offer=pool.offers[0].name, zone="local", boot="1",
                            state=InstanceState.RUNNING, launched_at=now, address="127.0.0.1",
                            ports=pool.offers[0].ports)
        return ComputeView(compute="acme", as_of=now,
            instances=tuple(machine(f"m{n}") for n in range(self.settings.machines)),
            foreign=tuple(machine(f"f{n}") for n in range(self.settings.foreign) if f"f{n}" not in self.ended))

    async def launch(self, pool, order):
        told(self.settings.journal, f"launch {order.count}")
        return LaunchState(status=LaunchStatus.PENDING)

    async def withdraw(self, pool, token):
        told(self.settings.journal, "withdraw")

    async def start(self, pool, ids):
        told(self.settings.journal, "start")

    async def stop(self, pool, ids):
        told(self.settings.journal, "stop")

    async def terminate(self, pool, ids):
        if pool.name != "old" and any(one.startswith("f") for one in ids):
            return  # the foreign ones are tagged with pool old: another pool's are left alone
        self.ended.update(ids)
        told(self.settings.journal, f"terminate {pool.name} {' '.join(ids)}")

    async def adopt(self, pool, ids):
        told(self.settings.journal, f"adopt {pool.name} {' '.join(ids)}")

    async def precheck(self, pool, ids):
        return {}

    def check_offer(self, offer):
        return ["the image is old"] if '"image":"old"' in offer.request else []

    async def aclose(self):
        pass

def build(settings, context):
    if settings.image == "unbuildable":
        raise ValueError("no such image")
    return AcmeCompute(settings, context)
"""

_BALANCER = """
import msgspec
from autoscaler.domain.pool import BalancerTraits
from autoscaler.domain.replica import BalancerView
from acme_things.common import told

class Settings(msgspec.Struct, frozen=True, kw_only=True):
    target: str
    journal: str = ""
    strategy: str = "round_robin"
    headers: dict[str, str] = {}

class AcmeBalancer:
    def __init__(self, settings, context):
        self.settings, self.context = settings, context

    def traits(self):
        return BalancerTraits(name=self.context.name, strategies=("round_robin", "least_connections"))

    async def members(self):
        return BalancerView(balancer=self.context.name, members=(), as_of=self.context.clock.now())

    async def admit(self, endpoints):
        told(self.settings.journal, "admit")

    async def reweigh(self, endpoints):
        told(self.settings.journal, "reweigh")

    async def drain(self, endpoints):
        told(self.settings.journal, "drain")

    async def evict(self, endpoints):
        told(self.settings.journal, "evict")

    async def aclose(self):
        pass

def build(settings, context):
    return AcmeBalancer(settings, context)
"""

_PROBE = """
import msgspec
from autoscaler.domain.replica import ProbeVerdict

class Settings(msgspec.Struct, frozen=True, kw_only=True):
    loaded: bool = True

class AcmeProbe:
    def __init__(self, settings):
        self.settings = settings

    async def check(self, endpoint, *, generate):
        return ProbeVerdict(alive=True, loaded=self.settings.loaded, running=0, waiting=0)

    async def aclose(self):
        pass

def build(settings, context):
    return AcmeProbe(settings)
"""

_TELEMETRY = """
import msgspec
from autoscaler.domain.load import Kind, LoadSample, Reading, ReadingState

class Settings(msgspec.Struct, frozen=True, kw_only=True):
    value: float = 0.0

class AcmeTelemetry:
    def __init__(self, settings, context):
        self.settings, self.clock = settings, context.clock

    async def sample(self, signals, replicas):
        now, count = self.clock.now(), len(replicas)
        return LoadSample(at=now, readings={signal: Reading(signal=signal, kind=Kind.TOTAL, state=ReadingState.OK,
            at=now, value=self.settings.value, covered=count, expected=count) for signal in signals})

    async def aclose(self):
        pass

def build(settings, context):
    return AcmeTelemetry(settings, context)
"""

_POLICY = """
import msgspec
from autoscaler.domain.decision import Reason, Recommendation

class Settings(msgspec.Struct, frozen=True, kw_only=True):
    more: float = 1.0
    name: str = "acme_more"

class More:
    def __init__(self, settings):
        self.settings, self.name = settings, settings.name

    def signals(self):
        return frozenset()

    def recommend(self, pool, situation, carry, calendar):
        return Recommendation(target=situation.capacity.held + self.settings.more, reason=Reason(code="more"))

def build(settings):
    return More(settings)
"""

_MODULES = {
    "__init__": "",
    "common": _COMMON,
    "compute": _COMPUTE,
    "balancer": _BALANCER,
    "probe": _PROBE,
    "telemetry": _TELEMETRY,
    "policy": _POLICY,
    "broken": "raise RuntimeError('broken on\\nimport')",
    "bare": "Settings = dict",
    "needs": "import a_package_that_is_not_there",
}


def install_acme(site: Path) -> Path:
    """Write the distribution into `site`, a folder for sys.path."""
    package, info = site / "acme_things", site / "acme_things-1.0.dist-info"
    package.mkdir(parents=True)
    info.mkdir()
    for name, source in _MODULES.items():
        (package / f"{name}.py").write_text(source)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-things\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(_ENTRY_POINTS)
    return site
