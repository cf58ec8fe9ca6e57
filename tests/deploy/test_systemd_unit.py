"""The unit and its drop-ins: accepted by systemd itself, and what keeps a restart from cutting anything is in them."""

import configparser
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SYSTEMD = ROOT / "deploy" / "systemd"
DROP_INS = ("haproxy.conf", "local-replicas.conf")

needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")


def service(name: str = "autoscaler.service") -> dict[str, str]:
    """The [Service] section; of a key that stands twice, the last line."""
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string((SYSTEMD / name).read_text(encoding="utf-8"))
    return dict(parser["Service"])


def installed(folder: Path, *drop_ins: str) -> Path:
    """The unit as it would be installed, but with a program that is here."""
    text = (SYSTEMD / "autoscaler.service").read_text(encoding="utf-8")
    changed = text.replace("/opt/autoscaler/bin/autoscaler", "/bin/true")
    assert changed != text
    unit = folder / "autoscaler.service"
    unit.write_text(changed, encoding="utf-8")
    for name in drop_ins:
        beside = folder / "autoscaler.service.d"
        beside.mkdir(exist_ok=True)
        shutil.copy(SYSTEMD / name, beside)
    return unit


@needs_systemd
@pytest.mark.parametrize("drop_ins", [(), *((one,) for one in DROP_INS), DROP_INS])
def test_systemd_accepts_the_unit(tmp_path: Path, drop_ins: tuple[str, ...]) -> None:
    command = ["systemd-analyze", "verify", "--man=no", str(installed(tmp_path, *drop_ins))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=50)
    mine = [line for line in done.stderr.splitlines() if "autoscaler" in line]
    assert mine == []


@needs_systemd
@pytest.mark.parametrize("name", ["autoscaler.service", *DROP_INS])
def test_a_mistake_in_any_of_the_files_would_be_found(tmp_path: Path, name: str) -> None:
    unit = installed(tmp_path, *DROP_INS)
    wrong = unit if name == unit.name else tmp_path / "autoscaler.service.d" / name
    with wrong.open("a", encoding="utf-8") as file:
        file.write("\n[Service]\nKillMode=all\n")
    command = ["systemd-analyze", "verify", "--man=no", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=50)
    assert f"{name}:" in done.stderr


@needs_systemd
def test_the_exposure_that_systemd_computes_stays_low(tmp_path: Path) -> None:
    """0 is sealed, 10 is bare. `--threshold` is in tenths."""
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", "--threshold=20"]
    done = subprocess.run([*command, str(installed(tmp_path))], capture_output=True, text=True, check=False, timeout=50)
    overall = re.search(r"Overall exposure level for autoscaler.service: ([0-9.]+)", done.stdout)
    assert overall is not None, done.stdout + done.stderr
    assert float(overall[1]) <= 2.0
    assert done.returncode == 0


def test_a_restart_signals_the_daemon_alone_and_waits_for_it() -> None:
    found = service()
    assert found["KillMode"] == "process"
    assert found["Type"] == "notify"
    assert int(found["TimeoutStopSec"].removesuffix("s")) > 20  # supervisor.Options.stop_within
    assert (found["Restart"], found["RestartPreventExitStatus"]) == ("on-failure", "2")
    assert "ProcSubset" not in found  # boot_id must stay readable


def test_what_local_model_servers_need_is_given_back() -> None:
    found = service("local-replicas.conf")
    assert (found["PrivateDevices"], found["PrivateTmp"], found["RemoveIPC"]) == ("no", "no", "no")


def test_no_secret_stands_in_the_unit() -> None:
    found = service()
    assert found["LoadCredential"].startswith("admin-token:/")
    assert "%d/admin-token" in (SYSTEMD / "autoscaler.service").read_text(encoding="utf-8")
    assert "AUTOSCALER_ADMIN_TOKEN" not in (SYSTEMD / "autoscaler.service").read_text(encoding="utf-8")


@needs_systemd
@pytest.mark.skipif(shutil.which("systemd-sysusers") is None, reason="systemd-sysusers is not installed")
def test_the_user_can_be_made(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    command = ["systemd-sysusers", f"--root={tmp_path}", str(SYSTEMD / "sysusers.conf")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=50)
    assert done.returncode == 0, done.stderr
    assert "autoscaler:" in (tmp_path / "etc" / "passwd").read_text(encoding="utf-8")
