"""Starts and ends processes that must outlive the daemon. Run as a script of its own, with the standard library only.

    python -I -S detached.py < job.json > answer.json

Why a script: forking inside a program with threads is unsafe, and what runs here goes on when the daemon is killed.
A started process leads its own session and is a child of init once this script ends, so nobody's zombie.

Does: `start` commands with their marks and records; `end` sessions (SIGTERM, later SIGKILL). Does not: choose which.
Invariant: the record of a process is on disk before it becomes the command, and locks that were handed down are held
until then; so whoever takes the lock next sees every process that was started before, whatever was killed meanwhile.
"""

import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

#: In the environment of a started process: its own `pid:start`, which its children inherit but cannot be.
LEADER = "AUTOSCALER_TAG_LEADER"
_POLL_S = 0.1
_KILL_WAIT_S = 5.0


def start_of(pid: int) -> str:
    """Name the moment at which process `pid` began, in kernel ticks with the machine's boot.

    Empty where the process is gone, is a zombie, or the system has no /proc.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
    except OSError:
        return ""
    fields = text.rpartition(")")[2].split()  # the name in parentheses may hold blanks and parentheses
    return "" if fields[0] in "ZX" else f"{boot[:8]}.{fields[19]}"


def _start(process: dict[str, Any], locks: list[int]) -> dict[str, Any]:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        _become(process, locks, writer)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        failure = pipe.read()  # ends when the command has replaced the child: the pipe closes on exec
    if failure:
        os.waitpid(pid, 0)
        return dict(json.loads(failure))
    return {"pid": pid, "started": start_of(pid)}


def _become(process: dict[str, Any], locks: list[int], writer: int) -> None:
    record = Path(process["record"])
    try:
        os.setsid()
        me = {"pid": os.getpid(), "started": start_of(os.getpid())}
        environment = {**process["env"], LEADER: f"{me['pid']}:{me['started']}"}
        _redirect(process["log"])
        write_atomically(record, json.dumps({**me, "tags": process["tags"]}).encode())
        for lock in locks:
            os.set_inheritable(lock, False)  # noqa: FBT003 - the name says what is false
        for number in (signal.SIGPIPE, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        os.execve(process["path"], process["argv"], environment)  # noqa: S606 - no shell is wanted
    except OSError as error:
        with contextlib.suppress(OSError):
            record.unlink()
        answer = {"errno": error.errno, "error": f"{error.strerror}: {error.filename or process['path']}"}
        os.write(writer, json.dumps(answer).encode())
    finally:
        os._exit(127)


def _redirect(log: str) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    # Appending, so that a log that someone cuts short goes on from its new end.
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(nothing, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(nothing)
    os.close(output)


def write_atomically(path: Path, content: bytes) -> None:
    """Replace `path` in one step: readers see the old content or the new. Raises OSError."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with beside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


def members(leader: dict[str, Any]) -> list[int]:
    """List the processes of a session: those in it, and those that left it but carry its leader's mark."""
    pid, started = int(leader["pid"]), str(leader["started"])
    now = start_of(pid)
    reused = now not in {"", started}  # the number leads somebody else's session today
    mark = f"{LEADER}={pid}:{started}".encode()
    try:
        numbers = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    except OSError:  # no /proc: the leader's group is all that can be known
        return [pid] if _exists(pid) else []
    return [
        number
        for number in numbers
        if number != os.getpid() and start_of(number) and (_in(number, pid, reused=reused) or _carries(number, mark))
    ]


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True


def _in(number: int, session: int, *, reused: bool) -> bool:
    with contextlib.suppress(OSError):
        return not reused and os.getsid(number) == session
    return False


def _carries(number: int, mark: bytes) -> bool:
    with contextlib.suppress(OSError):
        return mark in Path(f"/proc/{number}/environ").read_bytes().split(b"\0")
    return False


def _signal(leader: dict[str, Any], number: signal.Signals) -> None:
    inside = members(leader)
    if int(leader["pid"]) in inside:
        with contextlib.suppress(OSError):
            os.killpg(int(leader["pid"]), number)
    elif number is signal.SIGTERM:  # its leader is gone: what it left behind is asked one by one
        for pid in inside:
            with contextlib.suppress(OSError):
                os.kill(pid, number)
    if number is signal.SIGKILL:
        for pid in inside:
            with contextlib.suppress(OSError):
                os.kill(pid, number)


def _end(sessions: list[dict[str, Any]]) -> None:
    begun = time.monotonic()
    for session in sessions:
        _signal(session, signal.SIGTERM)
    left = list(sessions)
    while left and time.monotonic() - begun < max(float(one["grace_s"]) for one in left) + _KILL_WAIT_S:
        time.sleep(_POLL_S)
        for session in [one for one in left if not members(one)]:
            left.remove(session)
            with contextlib.suppress(OSError):
                Path(session["stamp"]).unlink()
        for session in left:
            if time.monotonic() - begun >= float(session["grace_s"]):
                _signal(session, signal.SIGKILL)


def _accept_then_end(sessions: list[dict[str, Any]]) -> None:
    if os.fork():
        return  # accepted: the caller need not wait for the grace
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):  # the caller reads our output to its end
        os.dup2(nothing, number)
    _end(sessions)


def main() -> None:
    """Carry out the job on the standard input; the answer goes to the standard output as JSON."""
    job = json.load(sys.stdin)
    match job["do"]:
        case "start":
            answers = [_start(one, job["locks"]) for one in job["processes"]]
            sys.stdout.write(json.dumps(answers))
        case _:
            _accept_then_end(job["sessions"])


if __name__ == "__main__":
    main()
