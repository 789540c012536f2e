"""``refeed release``: versions of Refeed side by side in this home, and the formats that one reads and writes."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.invocation import HomeGroup, command_settings
from cli.terminal import err, out, print_json, print_table

if TYPE_CHECKING:
    from app.deployment import Deployment
    from rollout.releases import Release

app = typer.Typer(
    cls=HomeGroup,
    no_args_is_help=True,
    help="Install versions of Refeed side by side in this home, for streams that are of one of them.",
)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="A release's name.", show_default=False)]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


@app.command("add")
def add(
    wheel: Annotated[
        Path,
        typer.Argument(metavar="WHEEL", help="A wheel of Refeed, which carries its lock.", show_default=False),
    ],
    *,
    name: Annotated[
        str | None, typer.Option(help="The release's name.", show_default="the wheel's version")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Install a wheel as a release, with the packages of its lock; the code in it is run.

    Packages that are installed here are used. Others are downloaded, checked against the lock's hashes, into an
    environment that all releases with the same lock share.
    """
    if not as_json:
        err.print(f"installing {wheel.name} ...", markup=False)
    with _open() as deployment:
        release = deployment.releases.add(wheel, name=name)
    if as_json:
        print_json(release.to_json())
    else:
        out.print(f"{release.name}: Refeed {release.version}, sha256 {release.sha256}", markup=False)


@app.command("list")
def list_(as_json: JsonOption = False) -> None:
    """List the releases of this home."""
    with _open() as deployment:
        releases = deployment.releases.list_releases()
    if as_json:
        print_json([release.to_json() for release in releases])
    else:
        print_table(("release", "version", "sha256", "added"), [_row(release) for release in releases])


@app.command("remove")
def remove(name: NameArgument) -> None:
    """Remove a release that no stream is of."""
    with _open() as deployment:
        records = deployment.store.list_streams()
        used_by = [record.name for record in records if record.is_living and record.release == name]
        for update in deployment.store.list_updates(living=True):
            # The one that it goes to, and the one that it may go back to.
            if name in {update.request.release, update.from_release} and update.stream not in used_by:
                used_by.append(update.stream)
        deployment.releases.remove(name, used_by=used_by)
    out.print(f"{name} is removed", markup=False)


@app.command("formats")
def formats(as_json: JsonOption = False) -> None:
    """Print the formats that the release which runs here reads and writes; an update is checked with them."""
    from rollout.formats import own_formats

    found = own_formats()
    if as_json:
        print_json(found.to_json())
        return
    groups = {"state": found.state, **found.warehouses}
    rows = [
        (group, name, str(each.writes), " ".join(map(str, each.reads)))
        for group, formats in groups.items()
        for name, each in formats.items()
    ]
    print_table(("of", "format", "writes", "reads"), rows)


def _open() -> "Deployment":
    from app.deployment import Deployment

    return Deployment(command_settings())


def _row(release: "Release") -> tuple[str, ...]:
    return (release.name, release.version, release.sha256[:16], f"{release.added_at:%Y-%m-%d %H:%M}")
