from __future__ import annotations

from pathlib import Path

import pytest

from kgserve.cluster.audit_and_api_key_sync import ApiKeySync
from kgserve.platform.access.authentication import (
    ApiKey,
    KeyFileDamaged,
    add_api_key,
    create_api_key,
    read_api_keys,
    revoke_api_key,
)
from tests.cluster.in_memory import MemoryRig


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    made = [tmp_path / name for name in "abc"]
    for folder in made:
        folder.mkdir()
    return made


def made(folder: Path, name: str) -> ApiKey:
    key, _ = create_api_key(name, "write", ["*"], 1)
    add_api_key(folder, key)
    return key


def test_keys_of_one_node_reach_all_nodes(folders: list[Path]) -> None:
    rig = MemoryRig()
    nodes = [ApiKeySync(rig.node().registry, folder) for folder in folders]
    first = made(folders[0], "first")
    for node in nodes:
        node.look()
    assert [read_api_keys(folder) for folder in folders] == [[first]] * 3
    second = made(folders[1], "second")
    revoked = revoke_api_key(folders[2], "first", 7)
    for node in nodes * 2:
        node.look()
    for folder in folders:
        assert {key.id: key for key in read_api_keys(folder)} == {first.id: revoked, second.id: second}


def test_a_joining_node_shares_its_keys(folders: list[Path]) -> None:
    rig = MemoryRig()
    first, second = made(folders[0], "first"), made(folders[1], "second")
    nodes = [ApiKeySync(rig.node().registry, folder) for folder in folders[:2]]
    for node in [*nodes, *nodes]:
        node.look()
    assert (
        {key.id for key in read_api_keys(folders[0])}
        == {key.id for key in read_api_keys(folders[1])}
        == {first.id, second.id}
    )
    before = (folders[0] / "keys.json").stat()
    nodes[0].look()
    assert (folders[0] / "keys.json").stat() == before


def test_key_revoked_during_synchronization_is_revoked_everywhere(
    folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = MemoryRig()
    nodes = [ApiKeySync(rig.node().registry, folder) for folder in folders[:2]]
    made(folders[0], "first")
    nodes[0].look()

    def revoke_meanwhile(*_: object) -> None:
        monkeypatch.undo()
        revoke_api_key(folders[0], "first", 7)

    monkeypatch.setattr(ApiKeySync, "_publish", revoke_meanwhile)
    for node in nodes * 2:
        node.look()
    assert [each.revoked_at for folder in folders[:2] for each in read_api_keys(folder)] == [7, 7]


def test_revocation_that_could_not_be_merged_is_merged_later(folders: list[Path]) -> None:
    rig = MemoryRig()
    nodes = [ApiKeySync(rig.node().registry, folder) for folder in folders[:2]]
    made(folders[0], "first")
    for node in nodes * 2:
        node.look()
    revoke_api_key(folders[0], "first", 7)
    nodes[0].look()
    file, aside = folders[1] / "keys.json", folders[1] / "aside"
    file.rename(aside)
    file.write_bytes(b"damaged")
    with pytest.raises(KeyFileDamaged):
        nodes[1].look()
    aside.rename(file)
    nodes[1].look()
    assert [each.revoked_at for each in read_api_keys(file.parent)] == [7]
