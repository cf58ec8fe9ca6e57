"""Whether a file may be believed: who else could have written it, or may read what is secret in it.

For whoever is named a file by the user: the config, and a provider whose settings name one that holds a secret.

Does: look at owners and modes of an open file, of the folders above it and of those above a link to it. Does not: see
access control lists, or who may use root's account.
Invariant: whoever may change a file of ours could start commands as us, since offers name commands; so a file that
anyone but root and this user can write, or put in its place, is not read. What lies on a read-only mount cannot be
written by anyone here: that is how containers are given their files, often with owners and modes of elsewhere.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from collections.abc import Iterator
from pathlib import Path


def mistake_in(path: Path, seen: os.stat_result, *, secret: bool = False) -> str:
    """What is wrong with trusting the open file `path`, and what is allowed; empty when nothing is. Raises OSError."""
    if _read_only(path):
        return ""
    if not _ours(seen):
        return f"belongs to {_user(seen.st_uid)}; allowed: a file of {_who()}, or on a read-only mount"
    if others := _writers(seen):
        return f"{others} may write to it; allowed: chmod go-w"
    if secret and seen.st_mode & stat.S_IROTH:
        return "everyone may read the secret in it; allowed: chmod o-r, and a group of its own where one is needed"
    for folder in dict.fromkeys(_above(path)):
        found = folder.stat()
        if _read_only(folder):
            continue
        if not _ours(found):
            return f"lies under {folder}, which belongs to {_user(found.st_uid)}; allowed: folders of {_who()}"
        if not found.st_mode & stat.S_ISVTX and (others := _writers(found)):
            return f"lies under {folder}, to which {others} may write; allowed: chmod go-w {folder}"
    return ""


def _above(path: Path) -> Iterator[Path]:
    """The folders whose writers could put another file in the place of `path`, or of what it links to."""
    here = Path(os.path.abspath(path))  # noqa: PTH100 - a link must stay: its own folder counts too
    while True:
        yield from here.parents
        if not here.is_symlink():
            break
        here = Path(os.path.abspath(here.parent / here.readlink()))  # noqa: PTH100 - likewise
    yield from path.resolve().parents


def _ours(seen: os.stat_result) -> bool:
    return seen.st_uid in {0, os.geteuid()}


def _writers(seen: os.stat_result) -> str:
    """Who may write besides the owner, in words; empty when nobody may. A private group (umask 002) is its owner."""
    if seen.st_mode & stat.S_IWOTH:
        return "everyone"
    return "its group" if seen.st_mode & stat.S_IWGRP and not _private(seen) else ""


def _private(seen: os.stat_result) -> bool:
    try:
        group, owner = grp.getgrgid(seen.st_gid), pwd.getpwuid(seen.st_uid)
    except KeyError:
        return False
    return group.gr_name == owner.pw_name and owner.pw_gid == seen.st_gid and set(group.gr_mem) <= {owner.pw_name}


def _read_only(path: Path) -> bool:
    return bool(os.statvfs(path).f_flag & os.ST_RDONLY)


def _user(uid: int) -> str:
    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"


def _who() -> str:
    mine = os.geteuid()
    return "root" if mine == 0 else f"root or {_user(mine)}"
