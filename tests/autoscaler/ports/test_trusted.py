"""A file that somebody else could have written is no config, and a secret that everybody can read is none."""

import grp
import os
import pwd
import stat
from pathlib import Path

import pytest

from autoscaler.config.read import read_mapping, read_text
from autoscaler.domain.faults import ConfigError
from autoscaler.ports import trusted

ME = os.geteuid()
NOBODYS_GROUP = 3_999_999_999


def seen(path: Path, **changes: int) -> os.stat_result:
    """What fstat says of `path`, but for some fields."""
    real = path.stat()
    values = {"mode": real.st_mode, "uid": real.st_uid, "gid": real.st_gid, **changes}
    return os.stat_result((values["mode"], 1, 1, 1, values["uid"], values["gid"], 1, 0, 0, 0))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "c.yaml"
    path.write_text("a: 1")
    path.chmod(0o640)
    return path


def refusal(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        read_mapping(path)
    (line,) = caught.value.mistakes
    assert line.startswith(f"{path}: ")
    assert "allowed: " in line
    return line


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644, 0o400, 0o444])
def test_what_only_we_can_write_is_read(file: Path, mode: int) -> None:
    file.chmod(mode)
    assert read_mapping(file) == {"a": 1}


@pytest.mark.parametrize("mode", [0o666, 0o646, 0o602])
def test_what_everyone_can_write_is_refused(file: Path, mode: int) -> None:
    file.chmod(mode)
    assert "everyone may write to it" in refusal(file)


def test_what_a_group_can_write_is_refused_unless_it_is_its_owners_own(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group_may = stat.S_IFREG | 0o664
    assert "its group may write" in trusted.mistake_in(file, seen(file, mode=group_may, gid=NOBODYS_GROUP))
    monkeypatch.setattr(trusted, "_private", lambda _: True)
    assert trusted.mistake_in(file, seen(file, mode=group_may)) == ""


@pytest.mark.parametrize(
    ("members", "name", "primary", "private"),
    [
        ([], "ann", 500, True),
        (["ann"], "ann", 500, True),
        (["ann", "bob"], "ann", 500, False),
        ([], "staff", 500, False),
        ([], "ann", 7, False),
    ],
)
def test_a_private_group(
    file: Path, monkeypatch: pytest.MonkeyPatch, members: list[str], name: str, primary: int, private: bool
) -> None:
    group = grp.struct_group((name, "x", 500, members))
    owner = pwd.struct_passwd(("ann", "x", 500, primary, "", "/", "/bin/sh"))
    monkeypatch.setattr(grp, "getgrgid", lambda _: group)
    monkeypatch.setattr(pwd, "getpwuid", lambda _: owner)
    assert trusted._private(seen(file, uid=500, gid=500)) is private


def test_the_file_of_another_user_is_refused_and_roots_is_fine(file: Path) -> None:
    said = trusted.mistake_in(file, seen(file, uid=ME + 4_000))
    assert f"uid {ME + 4_000}" in said
    assert trusted.mistake_in(file, seen(file, uid=0)) == ""


@pytest.mark.parametrize("depth", [0, 1])
def test_a_folder_in_which_everyone_can_exchange_it_is_refused(tmp_path: Path, depth: int) -> None:
    open_folder = tmp_path / "open"
    folder = open_folder / "inner" if depth else open_folder
    folder.mkdir(parents=True)
    path = folder / "c.yaml"
    path.write_text("a: 1")
    open_folder.chmod(0o777)
    assert f"lies under {open_folder}, to which everyone may write" in refusal(path)
    open_folder.chmod(0o1777)  # as /tmp: nobody can take away what belongs to others
    assert read_mapping(path) == {"a": 1}


def test_a_link_is_as_good_as_its_own_folder_and_its_target(tmp_path: Path, file: Path) -> None:
    link = tmp_path / "link.yaml"
    link.symlink_to(file.name)
    assert read_mapping(link) == {"a": 1}
    file.chmod(0o666)
    assert "everyone may write to it" in refusal(link)
    file.chmod(0o600)
    loose = tmp_path / "loose"
    loose.mkdir()
    for target in (file, link):
        there = loose / f"to-{target.name}"
        there.symlink_to(target)
        loose.chmod(0o777)
        assert f"lies under {loose}" in refusal(there)
        near = tmp_path / f"via-{target.name}"
        near.symlink_to(there)
        assert f"lies under {loose}" in refusal(near), "a link in the middle counts too"


def test_what_lies_on_a_read_only_mount_nobody_here_wrote(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.chmod(0o666)
    monkeypatch.setattr(trusted, "_read_only", lambda _: True)
    assert read_mapping(file) == {"a": 1}


def test_a_secret_that_everyone_can_read_is_refused(file: Path) -> None:
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="everyone may read the secret in it"):
        read_text(file, "a token", secret=True)
    file.chmod(0o640)
    assert read_text(file, "a token", secret=True) == "a: 1"
