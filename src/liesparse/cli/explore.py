"""``liesparse explore``: show a learned model in the browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from liesparse.cli.common import DataDir, fail, framed

MISSING = "The explorer needs FastAPI and uvicorn. Install them: pip install 'liesparse[web]'"


@framed
def explore(
    console: Console,
    run: Annotated[
        Path | None, typer.Argument(metavar="[RUN]", help="Folder that `liesparse train` wrote; without it, a demo.")
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 0,
    host: Annotated[str, typer.Option(help="Address to listen on; others than this machine's own need care.")] = (
        "127.0.0.1"
    ),
    no_open: Annotated[bool, typer.Option("--no-open", help="Do not open the browser.")] = False,
    export: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Write the page to one file, instead of serving it.")
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Explore a model in the browser: shapes, poses, planes, your own drawings."""
    import ipaddress
    import logging
    import threading
    import webbrowser
    from contextlib import closing, suppress

    logging.basicConfig(format="%(message)s")
    if export is not None and export.suffix.lower() not in (".html", ".htm"):
        raise fail(console, f"--export {export}: the name must end in .html.", 2)
    try:
        import fastapi  # noqa: F401, first, as torch is slow to import
        import uvicorn  # noqa: F401

        from liesparse.web.html import export_page
        from liesparse.web.server import address_of, make_app, make_server, open_socket
        from liesparse.web.session import open_session
    except ModuleNotFoundError as error:
        raise fail(console, f"{error}. {MISSING}") from None
    if export is not None:
        export_page(open_session(run, data_dir=data_dir), export)
        console.print(f"{export}: {export.stat().st_size / 1000:,.0f} KB. Open it in any browser.", markup=False)
        return
    with closing(open_socket(host, port)) as listening:
        if not ipaddress.ip_address(listening.getsockname()[0]).is_loopback:
            warning = f"Warning: everyone who can reach {host} can use this server. There is no password."
            console.print(warning, style="yellow", markup=False)
        address = address_of(listening, host)

        def announce() -> None:
            console.print(f"The explorer is at {address} Stop it with Ctrl-C.", markup=False)
            if not no_open:  # in a thread, as a text browser would block
                threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()

        app = make_app(open_session(run, data_dir=data_dir), host=host, on_start=announce)
        with suppress(KeyboardInterrupt):  # uvicorn raises it again after it has shut down
            make_server(app).run(sockets=[listening])
    console.print("Stopped.")
