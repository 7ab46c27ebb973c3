"""What a shard does in each scene that is text alone (docs/protocol.md has the rules)."""

import pytest

from unit.syncer.fixtures import Play, scenes

SCENES = scenes()


@pytest.mark.parametrize("name", SCENES)
def test_scene(name: str, play: Play) -> None:
    play(SCENES[name])
