"""What a shard does in each scene of the folder `scenes` (docs/protocol.md has the rules)."""

import pytest

from unit.syncer.scenes_side import Play, scenes

SCENES = scenes()


@pytest.mark.parametrize("name", SCENES)
def test_scene(name: str) -> None:
    Play().play(SCENES[name])
