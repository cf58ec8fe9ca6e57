"""What the demo makes of the daemon's and the proxy's own answers, or of their silence."""

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from autoscaler.demo.watch import Watch
from autoscaler.demo.world import World

Answers = dict[str, tuple[int, str]]


@pytest.fixture
def answers() -> Answers:
    return {}


@pytest.fixture
def port(answers: Answers) -> Iterator[int]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            status, text = answers.get(self.path, (404, "{}"))
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        @override
        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


@pytest.fixture
def watch(port: int, tmp_path: Path) -> Iterator[Watch]:
    world = World(root=tmp_path, installation="demo-1", admin_port=port, listen_port=1, proxy_admin_port=port)
    with Watch(world, 25.0) as found:
        yield found


def opinion(wants: float | None, code: str, **facts: object) -> dict[str, Any]:
    return {"policy": code, "recommendation": {"target": wants, "reason": {"code": code, "facts": facts}}}


def pool(target: int, *opinions: dict[str, Any]) -> str:
    return json.dumps(
        {
            "at": 1.0,
            "phases": {"in_service": 2, "loading": 1},
            "capacity": {"in_service": 2.0},
            "target": target,
            "trust": "trust",
            "trust_why": "all answer",
            "sentence": "wants 3",
            "opinions": opinions,
        }
    )


def test_a_look_is_a_sample_with_the_reason_of_the_opinion_that_decided(watch: Watch, answers: Answers) -> None:
    answers["/v1/pools/demo"] = (
        200,
        pool(
            5,
            opinion(2.1, "below_target", signal="gpu_utilization", value=0.5, target=0.75),
            opinion(4.5, "above_target", signal="queue_length", value=18.0, target=4.0),
            opinion(4.7, "slo_breach", signal="ttft_s_p95", value=0.2, objective=0.08),
            opinion(None, "signal_quiet", signal="ttft_s_p95", samples=3),
        ),
    )
    sample = watch.look()
    assert sample is not None
    assert sample.phases == {"in_service": 2, "loading": 1}
    assert (sample.capacity, sample.desired, sample.ttft_s_p95) == (2.0, 5.0, 0.2)
    assert (sample.trust, sample.sentence) == ("trust: all answer", "wants 3")
    assert sample.why == "queue 18, aim 4"  # the first of two that want five


def test_a_reason_stays_until_the_size_changes_again(watch: Watch, answers: Answers) -> None:
    """The launch is seen a look after the decision, when the queue may be gone."""
    whys = []
    for target, value in ((3, 9.0), (3, 0.0), (2, 1.0)):
        reason = opinion(float(target), "above_target", signal="queue_length", value=value, target=4.0)
        answers["/v1/pools/demo"] = 200, pool(target, reason)
        sample = watch.look()
        assert sample is not None
        whys.append(sample.why)
    assert whys == ["queue 9, aim 4", "queue 9, aim 4", "queue 1, aim 4"]


@pytest.mark.parametrize(
    ("status", "text"), [(503, "{}"), (200, "no json"), (200, "[]"), (200, "{}"), (200, '{"at": null}'), (200, "")]
)
def test_an_answer_that_says_nothing_is_no_sample(watch: Watch, answers: Answers, status: int, text: str) -> None:
    answers["/v1/pools/demo"] = status, text
    assert watch.look() is None
    answers["/v1/pools/demo"] = 200, pool(1)
    sample = watch.look()
    assert sample is not None
    assert sample.why == "no policy"


def test_nobody_there_is_no_sample(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = int(taken.getsockname()[1])
    world = World(root=tmp_path, installation="demo-1", admin_port=port, listen_port=1, proxy_admin_port=port)
    with Watch(world, 25.0) as watch:
        assert watch.look() is None
        with pytest.raises(OSError, match="the proxy does not say"):
            watch.proxy()


def test_the_proxys_counters_are_read_by_name(watch: Watch, answers: Answers) -> None:
    stats = {"cluster.replicas.upstream_cx_connect_fail": 2, "cluster.replicas.upstream_rq_retry": 3, "other": 9}
    listed = [{"name": name, "value": value} for name, value in stats.items()]
    answers["/stats?format=json&type=Counters"] = 200, json.dumps({"stats": [*listed, {"histograms": {}}]})
    assert watch.proxy() == (2, 3)
    answers["/stats?format=json&type=Counters"] = 200, json.dumps({"stats": listed[:1]})
    with pytest.raises(OSError, match="the proxy does not say"):
        watch.proxy()
