"""The page at /docs, for a browser that reaches nothing but the API."""

import base64
import hashlib
import re
from importlib.metadata import distribution
from urllib.parse import urljoin, urlsplit

import pytest

from model.principal import ADMIN

_TYPES = {".css": "text/css", ".js": "text/javascript", ".png": "image/png"}


@pytest.fixture(scope="module")
def api(start_api):
    """An API that has a key, called by somebody without one."""
    api = start_api()
    api.make_key(ADMIN)
    return api


def test_the_page_names_no_other_host_and_each_file_that_it_names_is_served(api):
    with api.client() as client:
        page = client.get("/docs")
        assert page.status_code == 200
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        named = re.findall(r"""(?:src|href|url)\s*[=:]\s*["']([^"']+)["']""", page.text)
        assert len(named) == 4
        for name in named:
            address = urljoin(str(page.url), name)
            assert urlsplit(address).netloc == urlsplit(str(page.url)).netloc
            answer = client.get(address)
            assert answer.status_code == 200, name
            assert answer.content
            kind = _TYPES.get(address[address.rfind(".") :], "application/json")
            assert answer.headers["content-type"].partition(";")[0] == kind
        assert not re.search(r"(https?:)?//", page.text)


def test_the_page_works_behind_a_proxy_that_serves_it_under_a_path(api):
    with api.client() as client:
        named = re.findall(r"""(?:src|href|url)\s*[=:]\s*["']([^"']+)["']""", client.get("/docs").text)
    assert not [name for name in named if name.startswith("/")]


def test_the_files_are_those_that_the_package_was_locked_with(client):
    package = distribution("fastapi-swagger")
    recorded = {file.name: file.hash for file in package.files or () if file.parent.name == "resources"}
    for name in ("swagger-ui-bundle.js", "swagger-ui.css", "favicon-32x32.png"):
        hashed = recorded[name]
        digest = hashlib.new(hashed.mode, client.get(f"/docs/{name}").content).digest()
        assert base64.urlsafe_b64encode(digest).rstrip(b"=").decode() == hashed.value


def test_the_browser_is_told_to_ask_nobody_else_and_to_run_no_other_script(client):
    page = client.get("/docs")
    policy = dict(part.strip().split(" ", 1) for part in page.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["connect-src"] == "'self'"
    (script,) = re.findall(r"<script>(.*?)</script>", page.text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy["script-src"] == f"'self' 'sha256-{digest}'"
    assert not re.search(r"https?:", page.headers["content-security-policy"])


@pytest.mark.parametrize("path", ["/redoc", "/docs/", "/docs/main.py", "/docs/..%2Fmain.py"])
def test_nothing_else_is_served_to_everybody(api, path):
    with api.client() as client:
        assert client.get(path).status_code == 401
    with api.client(api.make_key(ADMIN, name="reader")) as client:
        assert client.get(path).status_code == 404
