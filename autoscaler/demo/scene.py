"""The demo's constants, each with its reason, and the command lines that follow from them.

It is the one place where the demo's size is chosen: which GPU, how fast, how much load. It starts nothing.

Invariant: every time here is in trace seconds; a process gets the time scale beside them and divides.

How the numbers were found. An offline simulation of the policy's defaults (queue length 4 a replica, GPU
utilisation 0.75, TTFT p95 2 s; +2 or +100 % out after 30 s, -1 in after 10 min and then every 5 min) on this
batch model, balanced by least requests of two, gives with the row below: first half 1 -> 6 -> 1 in two steps
out and five in, 3,525 s; second half 1 -> 6 -> 1 in three and five, 2,940 to 3,540 s; TTFT p95 19 s and 5 s.
The same loop over real stand-ins and a real balancer gave 18 s and 5 s, 143 s of wall time each. One replica
for good would have 64 s and 23 s, six for good 1.4 s and 0.7 s. The SLO is missed because a cold start is
longer than a burst: that is the recording, not a fault of the demo, and the summary says so.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

from autoscaler.demo.workload import Half


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What one demo run plays. *Units*: trace seconds."""

    # A whole half of the trace (1,718 s), ten minutes of stabilisation and five steps in take 3,540 s: 142 s
    # of wall time at 25 (at 20: 177 s). Six stand-ins, Envoy and the client use a quarter of one core then
    # (in the 68 s of the first half 1.4 s CPU a stand-in, 2.5 s Envoy, 5.7 s the client), and it sends 7 ms
    # late at the 95th percentile, which is 0.2 s of trace time.
    time_scale: float = 25.0

    # Measured, served by vLLM, and sized to the recording: one replica prefills 13,673 tokens/s, the mean of
    # the trace is 5,258, its fullest half minute 35,925. With 4 x H100 the second half never needs a fourth.
    profile: str = "qwen3-32b-2xh100-vllm"

    # The largest batch of that row's measured sweep.
    max_num_seqs: int = 128

    # 2 x 80 GB at 90 % less 65 GB of bf16 weights leaves 79 GB; 64 layers x 8 KV heads x 128 x 2 x 2 bytes
    # are 262 kB a token.
    kv_cache_tokens: int = 300_000

    # A vLLM pod on a ready node, image present, caches kept: 82 s measured for an 8B model (cold: 294 s). At
    # this time scale 3.3 s of wall time, which starting a Python process must fit into: it takes 0.5 to 1 s.
    load_s: float = 82.0
    load_jitter: float = 0.1

    # Six keep the second half's SLO, and a seventh would add 300 s of scaling in to the end of each run.
    replicas_min: int = 1
    replicas_max: int = 6

    ttft_objective_s: float = 2.0

    def wall_s(self, trace_s: float) -> float:
        """Trace seconds as they pass on the wall clock."""
        return trace_s / self.time_scale

    def server_command(self, *, port: int | str, stats_dir: Path, seed: int = 0, control: bool = False) -> list[str]:
        """How one stand-in replica is started; `port` may be a placeholder that is filled in later."""
        command = [sys.executable, "-m", "autoscaler.demo.model_server", "--port", str(port)]
        command += ["--profile", self.profile, "--time-scale", f"{self.time_scale:g}"]
        command += ["--max-num-seqs", str(self.max_num_seqs), "--kv-cache-tokens", str(self.kv_cache_tokens)]
        command += ["--load-s", f"{self.load_s:g}", "--load-jitter", f"{self.load_jitter:g}"]
        command += ["--seed", str(seed), "--stats-dir", str(stats_dir)]
        return [*command, "--control"] if control else command

    def load_command(
        self,
        *,
        url: str,
        out: Path,
        half: Half | None = "first",
        trace: Path | None = None,
        length_s: float | None = None,
    ) -> list[str]:
        """How the replay of a half, or of another trace or of only its beginning, is started."""
        command = [sys.executable, "-m", "autoscaler.demo.load", "--url", url, "--out", str(out)]
        command += ["--time-scale", f"{self.time_scale:g}"]
        command += [] if half is None else ["--half", half]
        command += [] if trace is None else ["--trace", str(trace)]
        command += [] if length_s is None else ["--length-s", f"{length_s:g}"]
        return command


DEFAULT = Scene()
