"""The account of a test."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from tests.support.aws_ec2_world import World, ec2_world


@pytest.fixture
async def world(aws_environment: str, tmp_path: Path) -> AsyncGenerator[World]:
    async with ec2_world(aws_environment, tmp_path) as one:
        yield one
