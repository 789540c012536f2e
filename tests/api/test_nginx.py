import shutil
import subprocess
from contextlib import contextmanager

import httpx
import pytest

from cli.processes import free_port, is_listening
from tests.waiting import wait_until

_SECONDS = 20.0
_CONFIG = """
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    server {{
        listen 127.0.0.1:{port};
        location / {{ {location} }}
    }}
}}
"""


@contextmanager
def nginx(folder, location):
    program = shutil.which("nginx")
    if program is None:
        pytest.skip("nginx is not installed (Debian: apt-get install nginx-light)")
    port = free_port()
    config = folder / "nginx.conf"
    config.write_text(_CONFIG.format(folder=folder, port=port, location=location))
    process = subprocess.Popen(
        [program, "-p", str(folder), "-c", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        wait_until(lambda: is_listening(f"127.0.0.1:{port}") or process.poll() is not None, "nginx listens")
        assert process.poll() is None, (folder / "error.log").read_text()
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(_SECONDS)


@pytest.mark.parametrize(
    "extra",
    [
        "",
        "proxy_buffering off; proxy_read_timeout 1h;",
        "proxy_http_version 1.1; proxy_set_header X-Real-IP $remote_addr;",
        "proxy_http_version 1.1; proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;",
    ],
    ids=["bare", "as docs/security.md has it", "x-real-ip", "x-forwarded-for"],
)
def test_behind_nginx_a_service_without_a_key_answers_nobody(api, tmp_path, extra):
    with nginx(tmp_path, f"proxy_pass {api.url}; {extra}") as url:
        answers = [
            httpx.get(f"{url}{path}", timeout=_SECONDS) for path in ("/backfills", "/topics", "/audit", "/healthz")
        ]
    assert [(answer.status_code, answer.json()["code"]) for answer in answers] == [(403, "proxy_without_key")] * 4
    assert "refeed key create" in answers[0].json()["detail"]


def test_behind_nginx_a_key_is_let_through_and_nobody_else(start_api, tmp_path):
    api = start_api()
    key = api.make_key("backfills.read")
    with nginx(tmp_path, f"proxy_pass {api.url};") as url:
        stranger = httpx.get(f"{url}/backfills", timeout=_SECONDS)
        known = httpx.get(f"{url}/backfills", headers={"Authorization": f"Bearer {key}"}, timeout=_SECONDS)
    assert (stranger.status_code, stranger.json()["code"]) == (401, "unauthenticated")
    assert known.status_code == 200
