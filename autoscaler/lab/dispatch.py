"""Who gets a request, compiled: the balancer's strategies, requests held while nobody takes any, and the passing time.

Does: choose among the open slots as balancers do. Does not: work on a request (the kernel does).
Invariant: only an open slot is given a request; without one it is held, first come first served.
"""

from __future__ import annotations

import numpy as np

from autoscaler.lab import kernel as k
from autoscaler.lab.compiling import entry, inner
from autoscaler.lab.kernel import State


@inner
def mixed(value: int) -> int:
    """A 63-bit mix of an integer (splitmix64): equal input, equal output, no order of calls."""
    z = np.uint64(value) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(0xD1B54A32D192ED03)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return int((z ^ (z >> np.uint64(31))) >> np.uint64(1))


@inner
def least(s: State, now: float, by: int) -> int:
    """The open slot with the least inside a unit of weight; ties go round."""
    opens, start = s.glob[k.OPENS], s.glob[k.ROUND]
    best, lowest = -1, 1e300
    for n in range(opens):
        at = start + n
        if at >= opens:
            at -= opens
        r = s.open[at]
        k.run(s, r, now)
        c = s.cnt[r]
        inside = c[k.OWED] if by == k.LEAST_LOAD else c[k.DECODING] + c[k.PREFILLING] + c[k.WAITING]
        load = inside / s.num[r, k.WEIGHT]
        if load < lowest:
            best, lowest = r, load
    s.glob[k.ROUND] = start + 1 if start + 1 < opens else 0
    return best


@inner
def smooth(s: State) -> int:
    """Smooth weighted round robin: each slot gains its weight, the highest is chosen and pays the sum."""
    best, total = -1, 0.0
    for n in range(s.glob[k.OPENS]):
        r = s.open[n]
        s.num[r, k.TURN] += s.num[r, k.WEIGHT]
        total += s.num[r, k.WEIGHT]
        if best < 0 or s.num[r, k.TURN] > s.num[best, k.TURN]:
            best = r
    s.num[best, k.TURN] -= total
    return best


@inner
def hashed(s: State, i: int) -> int:
    """The slot of the request's client by rendezvous hashing. Low client numbers are busy ones: u squared."""
    u = (mixed(s.glob[k.SEED] + i) & 0xFFFFFFFF) / 4294967296.0
    client = int(s.glob[k.CLIENTS] * u * u)
    best, highest = -1, -1
    for n in range(s.glob[k.OPENS]):
        r = s.open[n]
        draw = mixed(client * 1000003 + r * 7919 + s.glob[k.SEED])
        if draw > highest:
            best, highest = r, draw
    return best


@inner
def choose(s: State, i: int, now: float) -> int:
    """The slot that gets request i, moved on to `now`; at least one slot is open."""
    strategy = s.glob[k.STRATEGY]
    if strategy in (k.LEAST_CONNECTIONS, k.LEAST_LOAD, k.CENTRAL):
        return least(s, now, strategy)
    if strategy == k.WEIGHTED:
        r = smooth(s)
    elif strategy == k.SOURCE_HASH:
        r = hashed(s, i)
    else:
        at = s.glob[k.ROUND]
        if at >= s.glob[k.OPENS]:
            at = 0
        s.glob[k.ROUND] = at + 1
        r = s.open[at]
    k.run(s, r, now)
    return r


@inner
def hold(s: State, i: int) -> None:
    """Keep a request at the balancer."""
    s.after[i] = -1
    if s.glob[k.HELD] == 0:
        s.glob[k.H_HEAD] = i
    else:
        s.after[s.glob[k.H_TAIL]] = i
    s.glob[k.H_TAIL] = i
    s.glob[k.HELD] += 1


@inner
def unhold(s: State) -> int:
    """The request that has been held longest."""
    i = s.glob[k.H_HEAD]
    s.glob[k.H_HEAD] = s.after[i]
    s.glob[k.HELD] -= 1
    return int(i)


@inner
def release(s: State, now: float, patience: float) -> None:
    """Requests held for longer than `patience` seconds fail; the others go to the open slots, if there are any."""
    while s.glob[k.HELD] > 0:
        waited = now - s.arrival[s.glob[k.H_HEAD]]
        if waited > patience:
            s.status[unhold(s)] = k.FAILED
            s.glob[k.GAVE_UP] += 1
        elif s.glob[k.OPENS] > 0 and s.glob[k.STRATEGY] != k.CENTRAL:
            i = unhold(s)
            k.give(s, choose(s, i, now), i, now)
        else:
            return


@inner
def pull(s: State, now: float) -> None:
    """One queue for all: open slots with a free place take from it, the emptiest first."""
    while s.glob[k.HELD] > 0 and s.glob[k.OPENS] > 0:
        r = least(s, now, k.CENTRAL)
        c = s.cnt[r]
        if c[k.DECODING] + c[k.PREFILLING] + c[k.WAITING] >= c[k.BATCH_MAX]:
            return
        k.give(s, r, unhold(s), now)


@entry
def hand_out(s: State, now: float, patience: float) -> None:
    """Give what is held to the open slots, and fail what was held for longer than `patience` seconds."""
    release(s, now, patience)
    if s.glob[k.STRATEGY] == k.CENTRAL:
        pull(s, now)


@inner
def work(s: State, slots: int, until: float) -> None:
    """Move all replicas on to `until`; with one queue for all in the order of their events, since each end pulls."""
    if s.glob[k.STRATEGY] != k.CENTRAL:
        for r in range(slots):
            k.run(s, r, until)
        return
    while True:
        first, soonest = slots, until
        for r in range(slots):
            if s.num[r, k.NEXT] <= soonest:
                first, soonest = r, s.num[r, k.NEXT]
        if first == slots:
            return
        k.turn(s, first)
        pull(s, soonest)


@entry
def advance(s: State, slots: int, until: float, patience: float) -> None:
    """Move everything on to `until`: arrivals up to and including it, and all work. `slots`: rows in use."""
    i, count = s.glob[k.CURSOR], len(s.arrival)
    central = s.glob[k.STRATEGY] == k.CENTRAL
    while i < count and s.arrival[i] <= until:
        now = s.arrival[i]
        if central:
            work(s, slots, now)
            hold(s, i)
            pull(s, now)
        elif s.glob[k.OPENS] == 0:
            hold(s, i)
        else:
            k.give(s, choose(s, i, now), i, now)
        i += 1
    s.glob[k.CURSOR] = i
    work(s, slots, until)
    if s.glob[k.HELD] > 0:
        release(s, until, patience)
    queued = stepping = 0
    for r in range(slots):
        queued += s.cnt[r, k.WAITING]
        stepping += s.cnt[r, k.MODE] != k.IDLE
    s.glob[k.QUEUED], s.glob[k.STEPPING] = queued, stepping


@entry
def kill(s: State, r: int, status: int) -> int:
    """A replica ends with all that is inside it, which gets `status`; the number of requests lost."""
    c = s.cnt[r]
    lost = c[k.DECODING] + c[k.PREFILLING] + c[k.WAITING]
    for n in range(c[k.DECODING]):
        s.status[s.heap[r, n] & k.MASK] = status
    i = c[k.P_HEAD]
    for _ in range(c[k.PREFILLING]):
        s.status[i] = status
        i = s.after[i]
    i = c[k.W_HEAD]
    for _ in range(c[k.WAITING]):
        s.status[i] = status
        i = s.after[i]
    c[k.DECODING] = c[k.PREFILLING] = c[k.WAITING] = c[k.KV] = c[k.OWED] = 0
    c[k.P_DONE] = c[k.STEPS] = 0
    c[k.MODE] = k.IDLE
    s.num[r, k.NEXT] = 1e300
    return int(lost)
