"""``refeed release``: versions of Refeed side by side in this home, and the formats that one reads and writes."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.invocation import HomeGroup, open_deployment
from cli.options import JsonOption
from cli.terminal import err, out, print_found, render_table

if TYPE_CHECKING:
    from rollout.releases import Release

app = typer.Typer(
    cls=HomeGroup,
    no_args_is_help=True,
    help="Install several releases of Refeed in this home. Each stream can run with its own release.",
)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="A release's name.", show_default=False)]


@app.command("add")
def add(
    wheel: Annotated[
        Path,
        typer.Argument(metavar="WHEEL", help="A wheel of Refeed.", show_default=False),
    ],
    *,
    name: Annotated[
        str | None, typer.Option(help="The release's name.", show_default="the wheel's version")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Install a wheel as a release, with the packages that its requirements.lock lists.

    The command runs code from the wheel, so install only wheels that you trust. Missing packages are downloaded
    and checked against the hashes in requirements.lock. Releases with the same requirements.lock share one
    environment.
    """
    if not as_json:
        err.print(f"installing {wheel.name} ...")
    with open_deployment() as deployment:
        release = deployment.releases.add(wheel, name=name)
    said = f"{release.name}: Refeed {release.version}, sha256 {release.sha256}"
    print_found(release.to_json(), lambda _: [said], as_json=as_json)


@app.command("list")
def list_(as_json: JsonOption = False) -> None:
    """List the releases that were added to this home, and the installed version."""
    from importlib.metadata import version

    with open_deployment() as deployment:
        releases = deployment.releases.list_releases()
    rows = [_row(release) for release in releases]
    own = f"Refeed {version('refeed')} is installed. Streams run with it unless a release is named."
    print_found(
        [release.to_json() for release in releases],
        lambda _: [*render_table(("release", "version", "sha256", "added"), rows), own],
        as_json=as_json,
    )


@app.command("remove")
def remove(name: NameArgument) -> None:
    """Remove a release that no stream uses."""
    with open_deployment() as deployment:
        records = deployment.store.list_streams()
        used_by = [record.name for record in records if record.is_living and record.release == name]
        for update in deployment.store.list_updates(living=True):
            # The one that it goes to, and the one that it may go back to.
            if name in {update.request.release, update.from_release} and update.stream not in used_by:
                used_by.append(update.stream)
        deployment.releases.remove(name, used_by=used_by)
    out.print(f"{name} is removed")


@app.command("formats")
def formats(as_json: JsonOption = False) -> None:
    """Print the formats that this release reads and writes. 'refeed update --dry-run' compares these formats."""
    from rollout.formats import own_formats

    found = own_formats()
    groups = {"state": found.state, **found.warehouses}
    rows = [
        (group, name, str(each.writes), " ".join(map(str, each.reads)))
        for group, formats in groups.items()
        for name, each in formats.items()
    ]
    names = ("of", "format", "writes", "reads")
    print_found(found.to_json(), lambda _: render_table(names, rows), as_json=as_json)


def _row(release: "Release") -> tuple[str, ...]:
    return (release.name, release.version, release.sha256[:16], f"{release.added_at:%Y-%m-%d %H:%M}")
