"""OCI archives: layers of files, and images of layers, as `ctr images import` reads them."""

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cluster.lab.layout import cache_folder

_LAYER = "application/vnd.oci.image.layer.v1.tar"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An image to be: `name` has a domain and a tag, layers are uncompressed tars."""

    name: str
    layers: Sequence[Path]
    config: Mapping[str, object] = field(default_factory=dict)


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def layer_file(what: str, key: str) -> Path:
    """Name the cached layer that was, or is to be, made of what `key` names."""
    folder = cache_folder() / "layers"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{what}-{digest(key.encode())[:12]}.tar"


def write_layer(layer: Path, tree: Path) -> None:
    """Pack what is below a folder into a layer that depends on the files' contents alone."""
    partial = layer.with_suffix(".partial")
    with tarfile.open(partial, "w") as tar:
        for entry in sorted(tree.iterdir()):
            tar.add(entry, entry.name, filter=_plain)
    partial.rename(layer)


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
    return member


def write_archive(file: Path, images: Sequence[Image], known: Collection[Path] = ()) -> None:
    """Write images as one archive, without the layers that its importer has already."""
    blobs: dict[str, bytes] = {}
    layers = {layer: _describe_file(layer) for image in images for layer in image.layers}
    manifests = [_add_image(image, layers, blobs) for image in images]
    index = {"schemaVersion": 2, "manifests": manifests}
    partial = file.with_suffix(".partial")
    with tarfile.open(partial, "w") as archive:
        _add(archive, "oci-layout", b'{"imageLayoutVersion": "1.0.0"}')
        _add(archive, "index.json", json.dumps(index).encode())
        for name, text in blobs.items():
            _add(archive, f"blobs/sha256/{name}", text)
        for layer, described in layers.items():
            if layer not in known:
                archive.add(layer, f"blobs/{str(described['digest']).replace(':', '/')}")
    partial.rename(file)


def _add_image(
    image: Image, layers: Mapping[Path, Mapping[str, object]], blobs: dict[str, bytes]
) -> Mapping[str, object]:
    """Add an image's config and manifest to the blobs, and describe it for the index."""
    used = [layers[layer] for layer in image.layers]
    config = {
        "architecture": {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine],
        "os": "linux",
        "config": image.config,
        "rootfs": {"type": "layers", "diff_ids": [layer["digest"] for layer in used]},
    }
    described = _describe(_CONFIG, config, blobs)
    manifest = {"schemaVersion": 2, "mediaType": _MANIFEST, "config": described, "layers": used}
    names = ("io.containerd.image.name", "org.opencontainers.image.ref.name")
    annotations = dict.fromkeys(names, image.name)  # for containerd, and for tools that build
    return {**_describe(_MANIFEST, manifest, blobs), "annotations": annotations}


def _describe(
    kind: str, document: Mapping[str, object], blobs: dict[str, bytes]
) -> Mapping[str, object]:
    text = json.dumps(document).encode()
    blobs[digest(text)] = text
    return {"mediaType": kind, "digest": f"sha256:{digest(text)}", "size": len(text)}


def _describe_file(layer: Path) -> Mapping[str, object]:
    with layer.open("rb") as content:
        found = hashlib.file_digest(content, "sha256").hexdigest()
    return {"mediaType": _LAYER, "digest": f"sha256:{found}", "size": layer.stat().st_size}


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))
