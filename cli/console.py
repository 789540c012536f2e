"""``refeed console``: the console alone, over the API of another process or machine."""

from typing import Annotated

import typer

from cli.api import check_api_url, find_api_url
from cli.processes import check_port_free
from cli.services import service_settings


def console(
    api_url: Annotated[
        str | None,
        typer.Option(
            help="The API's address. Default: REFEED_API_URL, else the API of the 'refeed up' of this home."
        ),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on.")] = 8090,
    host: Annotated[
        str,
        typer.Option(
            help="Address to listen on. If the API has no keys, the console only answers calls from this machine."
        ),
    ] = "127.0.0.1",
) -> None:
    """Serve the console until Ctrl-C. 'refeed up' and 'refeed api' already serve the console at /console."""
    from api.server import serve_until_told
    from app.console import LoneConsole

    settings = service_settings()
    url = find_api_url() if api_url is None else check_api_url(api_url, "--api-url")
    check_port_free(port, "--port")
    alone = LoneConsole(url)
    serve_until_told(alone.app, alone, host=host, port=port, head_seconds=settings.body_timeout_seconds)
