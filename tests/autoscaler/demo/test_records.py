from pathlib import Path

import msgspec

from autoscaler.demo.records import (
    Progress,
    RequestRecord,
    progress_path,
    quantile,
    read_progress,
    write_whole,
)


def test_quantile_is_a_value_that_occurred() -> None:
    assert quantile([], 0.95) is None
    assert quantile([3.0], 0.95) == 3.0
    assert quantile(map(float, range(1, 101)), 0.95) == 95.0
    assert quantile([5.0, 1.0], 0.5) == 1.0


def test_a_record_knows_what_the_client_and_what_the_pool_made_late() -> None:
    record = RequestRecord(
        index=0, scheduled_at=10.0, sent_at=10.5, first_token_at=12.0, input_tokens=1, output_tokens=1
    )
    assert record.ttft_s == 1.5
    assert record.send_lag_s == 0.5


def test_the_snapshot_lies_beside_the_records(tmp_path: Path) -> None:
    out = tmp_path / "requests.jsonl"
    assert read_progress(out) is None
    progress = Progress(at=1.0, elapsed_s=2.0, scheduled=3)
    write_whole(progress_path(out), msgspec.json.encode(progress))
    assert read_progress(out) == progress
    assert [path.name for path in tmp_path.iterdir()] == ["requests.jsonl.progress.json"]
