"""Wheels for tests of releases: small ones that only say their formats, and this tree with changes."""

import base64
import hashlib
import json
import shutil
import tomllib
import zipfile
from collections.abc import Mapping
from pathlib import Path

from hatchling.builders.wheel import WheelBuilder

from rollout.formats import own_formats

ROOT = Path(__file__).parents[2]
# What a release says of its formats, and a module that shows whose code runs.
MAIN = """
import json, sys
from pathlib import Path
{extra}
if sys.argv[1:] == ["release", "formats", "--json"]:
    print(json.dumps({formats}))
else:
    print(Path(__file__), *sys.argv[1:])
"""


def write_wheel(folder: Path, name: str, version: str, files: Mapping[str, str]) -> Path:
    """Write a wheel of pure Python by hand; ``files`` are beside its METADATA, WHEEL and RECORD."""
    info = f"{name}-{version}.dist-info"
    found = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    lines = [
        f"{path},sha256={base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip('=')},"
        f"{len(text.encode())}"
        for path, text in found.items()
    ]
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in found.items():
            archive.writestr(path, text)
        archive.writestr(f"{info}/RECORD", "\n".join([*lines, f"{info}/RECORD,,\n"]))
    return wheel


def write_small_release(
    folder: Path, version: str, *, lock: str | None = "", extra: str = "", more: Mapping[str, str] | None = None
) -> Path:
    """Write a wheel named refeed whose terminal says its formats; ``extra`` runs when it starts.

    ``more`` are files beside its terminal.
    """
    formats = {**own_formats().to_json(), "version": version}
    files = {"cli/__init__.py": "", "cli/main.py": MAIN.format(extra=extra, formats=json.dumps(formats))}
    files |= more or {}
    if lock is not None:
        files[f"refeed-{version}.dist-info/extra_metadata/requirements.lock"] = lock
    return write_wheel(folder, "refeed", version, files)


def lock_of(wheel: Path, digest: str | None = None) -> str:
    name, version, *_ = wheel.name.split("-")
    digest = digest or hashlib.sha256(wheel.read_bytes()).hexdigest()
    return f"{name}=={version} \\\n    --hash=sha256:{digest}\n"


def build_release(folder: Path, version: str, changes: Mapping[str, tuple[str, str]]) -> Path:
    """Build a wheel of this tree as ``version``; ``changes`` replaces a text in a file, which has it once."""
    tree = folder / "tree"
    left_out = shutil.ignore_patterns("__pycache__", "node_modules")
    # All that pyproject.toml puts into a wheel.
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    for part in (*build["packages"], "docs"):
        shutil.copytree(ROOT / part, tree / part, ignore=left_out)
    for name in ("pyproject.toml", "requirements.lock", "README.md", "LICENSE"):
        shutil.copyfile(ROOT / name, tree / name)
    edits = {"pyproject.toml": ('version = "0.1.0"', f'version = "{version}"'), **changes}
    for name, (old, new) in edits.items():
        text = (tree / name).read_text()
        assert text.count(old) == 1, f"{name} has {old!r} {text.count(old)} times"
        (tree / name).write_text(text.replace(old, new))
    (wheel,) = WheelBuilder(str(tree)).build(directory=str(folder), versions=["standard"])
    return Path(wheel)
