from pathlib import Path

from autoscaler.demo.replica_stats import ReplicaStats, StatsFile, read_stats


def some_stats(port: int = 1, started_at: float = 5.0) -> ReplicaStats:
    return ReplicaStats(port=port, pid=port, model="m", time_scale=25, started_at=started_at)


def test_the_stamps_that_matter_are_in_the_file_at_once(tmp_path: Path) -> None:
    kept = StatsFile(some_stats(), tmp_path / "made" / "1-1.json")
    kept.write()
    kept.note_received(loaded=False)
    (early,) = read_stats(tmp_path / "made")
    assert (early.received, early.received_before_ready, early.load_done_at) == (1, 1, None)
    kept.note_loaded()
    kept.note_received(loaded=True)
    (loaded,) = read_stats(tmp_path / "made")
    assert loaded.load_done_at is not None
    assert loaded.first_client_request_at == early.first_client_request_at
    kept.write()
    (later,) = read_stats(tmp_path / "made")
    assert (later.received, later.received_before_ready) == (2, 1)


def test_replicas_are_read_in_the_order_of_their_start(tmp_path: Path) -> None:
    for port, started_at in ((2, 9.0), (3, 7.0)):
        StatsFile(some_stats(port, started_at), tmp_path / f"{port}.json").write()
    assert [stats.port for stats in read_stats(tmp_path)] == [3, 2]
    assert not list(tmp_path.glob(".*"))


def test_a_folder_that_went_away_does_not_stop_the_server(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    kept = StatsFile(some_stats(), tmp_path / "file" / "1.json")
    kept.note_received(loaded=True)
    assert kept.stats.received == 1
    StatsFile(some_stats(), None).write()
