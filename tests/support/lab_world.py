"""Simulated worlds on the machine's own clock, without traffic, as the contract tests want them: nothing takes long."""

import numpy as np

from autoscaler.domain.pool import Pool
from autoscaler.lab.adapters import Account, Present, SimulatedCompute
from autoscaler.lab.settings import CloudSettings, Delay, FrontSettings, WorldSettings
from autoscaler.lab.workload import Workload
from autoscaler.lab.world import World
from autoscaler.ports.clock import Clock

AT_ONCE = Delay(p50_s=0.0)
CLOUD = CloudSettings(launch=AT_ONCE, boot=AT_ONCE, load=AT_ONCE, ending_s=0.2, listed_s=0.0)


def quiet_world(pool: Pool, start: int = 0) -> World:
    """Return a world whose only request comes at second 0, so that nothing ever happens in it by itself."""
    one = np.ones(1, dtype=np.int32)
    idle = Workload("idle", np.zeros(1), one, one, duration_s=1.0)
    settings = WorldSettings(cloud=CLOUD, front=FrontSettings(lag_s=0.2, patience_s=0.0), start=start)
    return World(pool, idle, settings, seed=0)


def a_compute(clock: Clock, name: str) -> tuple[SimulatedCompute, Account]:
    """Return a compute in an account that makes every pool's world when it is first heard of."""
    account = Account(lambda pool: Present(quiet_world(pool), clock))
    return SimulatedCompute(name, account), account
