"""docs/haproxy.md holds what works: HAProxy is started with its very lines, but for the paths and the port."""

import re
import subprocess
import tempfile
from pathlib import Path

import pytest
import yaml

from autoscaler.domain.base import PoolName
from autoscaler.ports.build import Context
from providers.balancer import haproxy
from providers.balancer.haproxy import Settings
from providers.balancer.haproxy.process import binary
from providers.balancer.haproxy.settings import DEBIAN_SOCKET
from tests.support.haproxy import Someones
from tests.support.streaming import WallClock, ask_many, backends, free_ports

GUIDE = Path(__file__).parents[4] / "docs" / "haproxy.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)


def test_haproxy_finds_no_fault_in_the_lines_of_the_guide(tmp_path: Path) -> None:
    for number, block in enumerate(blocks("haproxy")):
        (tmp_path / f"{number}.cfg").write_text(block)
    done = subprocess.run([binary(Settings()), "-c", "-f", str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr


@pytest.mark.e2e
async def test_the_lines_of_the_guide_take_members_and_keep_them_through_a_reload() -> None:
    main, backend = blocks("haproxy")
    (config,) = blocks("yaml")
    (binding,) = yaml.safe_load(config)["balancers"]
    assert binding.pop("kind") == "haproxy"
    assert binding["socket"] == DEBIAN_SOCKET
    (listen,) = free_ports(1)
    with tempfile.TemporaryDirectory(prefix="hap-") as short:
        theirs = Someones(Path(short), listen)
        lines = main.replace(DEBIAN_SOCKET, str(theirs.socket)).replace(":8080", f":{listen}")
        theirs.main.write_text(lines.replace("mode 660 group haproxy", "mode 600"))
        theirs.servers.write_text(backend)
        settings = Settings(**{**binding, "socket": str(theirs.socket), "servers_file": str(theirs.servers)})
        context = Context(installation="prod", state_dir="", clock=WallClock(), pool=PoolName("llama"))
        try:
            theirs.start()
            balancer = haproxy.build(settings, context)
            await balancer.check_start()
            async with backends(2, chunks=1) as (one, other):
                await balancer.admit([one.endpoint(), other.endpoint()])
                theirs.reload()
                assert (await ask_many(theirs.url, 8)).complete == 8
        finally:
            theirs.end()
