"""The images of Atoll's three programs: this checkout's wheel upon its dependencies upon Debian.

An image for each role, `atoll.test/atoll-operator:test`, `...-worker:test` and `...-syncer:test`,
of three layers: Debian with Python, what pip finds for the wheel's extra of that name, the wheel.
The first two are in every node from the start; a change of the code makes a new third alone.
Torch is in none of them: it takes 5 GB. Images of roles that need it look for what they have not
got in /opt/share/torch, where every container of the lab sees the torch of this Python, and what
torch requires, but no other package that happens to be installed here.
The images for users, with torch in them, are made by the Dockerfile in each program's folder.
"""

import compileall
import configparser
import py_compile
import re
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

from cluster.lab.archives import Image, digest, layer_file, write_archive, write_layer
from cluster.lab.layout import ROOT, SHARES, LabError, cache_folder
from cluster.lab.processes import run

TAG = "test"
COMMANDS = {"operator": "atoll", "worker": "atoll-worker", "syncer": "atoll-syncer"}
VERSION = "3.11"  # of the Python in the image, and so of the one whose torch is shared
PACKAGES = f"usr/local/lib/python{VERSION}/dist-packages"
USER = "65532:65532"
PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

SCRIPT = """\
#!/usr/bin/python3
import sys
from {module} import {function}
sys.exit({function}())
"""


def dependency_layers() -> dict[str, Path]:
    """Map each role to the layer of what its extra requires, making those that are not cached."""
    return {role: _dependency_layer(*_requirements(role)) for role in COMMANDS}


def name(role: str, tag: str = TAG) -> str:
    """Name the image of a role."""
    return f"atoll.test/atoll-{role}:{tag}"


def write_images(python: Path, tag: str) -> Path:
    """Write the images of this checkout, but for the layers that every node has already."""
    wheel = wheel_layer()
    dependencies = dependency_layers()
    images = [
        Image(
            name=name(role, tag),
            layers=[python, dependencies[role], wheel],
            config={"Entrypoint": [command], "Env": [PATH], "User": USER},
        )
        for role, command in COMMANDS.items()
    ]
    archive = cache_folder() / "images" / "atoll.oci"
    write_archive(archive, images, known={python, *dependencies.values()})
    return archive


def torch_shares() -> dict[str, str]:
    """Share torch of the Python that runs this, and all that it requires: folders by name."""
    found: dict[str, Path] = {}
    seen, wanted = set(), [Requirement("torch")]
    while wanted:
        requirement = wanted.pop()
        if str(requirement) in seen:
            continue
        seen.add(str(requirement))
        try:
            package = distribution(requirement.name)
        except PackageNotFoundError:  # perhaps torch itself: then its users see that
            continue
        for file in package.files or ():
            if (top := file.parts[0]) not in ("..", "__pycache__"):
                found[top] = Path(str(package.locate_file(top)))
        for inner in map(Requirement, package.requires or ()):
            extras = requirement.extras or {""}
            if inner.marker is None or any(inner.marker.evaluate({"extra": e}) for e in extras):
                wanted.append(inner)
    return {f"torch/{top}": str(path.resolve()) for top, path in sorted(found.items())}


def _requirements(role: str) -> tuple[list[str], bool]:
    """Read what the wheel with a role's extra requires, and whether torch is to be shared too."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {*project["dependencies"], *project["optional-dependencies"][role]}
    torch = {word for word in wanted if re.match(r"torch\b", word)}
    return sorted(wanted - torch), bool(torch)


def _dependency_layer(requirements: Sequence[str], needs_torch: bool) -> Path:
    layer = layer_file("dependencies", repr((requirements, needs_torch, PACKAGES, SHARES)))
    if not layer.exists():
        sys.stderr.write(f"installing {len(requirements)} requirements into a layer\n")
        with tempfile.TemporaryDirectory(dir=layer.parent) as scratch:
            packages = Path(scratch) / PACKAGES
            _install(packages, requirements)
            if needs_torch:  # a path file adds to the end: the image's own packages come first
                (packages / "torch.pth").write_text(f"{SHARES / 'torch'}\n")
            write_layer(layer, Path(scratch))
    return layer


def _install(packages: Path, requirements: Sequence[str]) -> None:
    options = ["--quiet", "--no-compile", "--only-binary=:all:", f"--python-version={VERSION}"]
    run(sys.executable, "-m", "pip", "install", *options, "--target", packages, *requirements)
    _compile(packages)


def _compile(packages: Path) -> None:
    """Compile now, as pods cannot write; without the times that make every layer another."""
    if f"{sys.version_info.major}.{sys.version_info.minor}" == VERSION:
        unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
        compileall.compile_dir(packages, quiet=2, workers=2, invalidation_mode=unchecked)


def wheel_layer() -> Path:
    """Return the layer of this checkout's wheel and its commands."""
    sources = [ROOT / name for name in ("pyproject.toml", "README.md", "LICENSE")]
    for folder in ("operator", "worker", "syncer", "protos", "crds", "examples/bytegpt"):
        sources += sorted(f for f in (ROOT / folder).rglob("*") if "__pycache__" not in f.parts)
    content = b"".join(
        f"{source.relative_to(ROOT)}\0".encode() + source.read_bytes()
        for source in sources
        if source.is_file()
    )
    layer = layer_file("atoll", digest(content))
    if not layer.exists():
        for old in layer.parent.glob("atoll-*.tar"):
            old.unlink()
        with tempfile.TemporaryDirectory(dir=layer.parent) as scratch:
            tree = Path(scratch) / "tree"
            _unpack(build_wheel(Path(scratch)), tree)
            write_layer(layer, tree)
    return layer


def build_wheel(folder: Path) -> Path:
    """Build the wheel of this checkout into a folder."""
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", folder, ROOT)
    return next(folder.glob("*.whl"))


def _unpack(wheel: Path, tree: Path) -> None:
    packages, commands = tree / PACKAGES, tree / "usr/local/bin"
    with zipfile.ZipFile(wheel) as files:
        files.extractall(packages)
    _compile(packages)
    commands.mkdir(parents=True)
    described = configparser.ConfigParser()
    described.read(next(packages.glob("*.dist-info/entry_points.txt")))
    for name, place in described["console_scripts"].items():
        module, _, function = place.partition(":")
        (commands / name).write_text(SCRIPT.format(module=module, function=function))
        (commands / name).chmod(0o755)
    if missing := set(COMMANDS.values()) - set(described["console_scripts"]):
        raise LabError(f"the wheel has no command {', '.join(sorted(missing))}")
