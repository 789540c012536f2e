"""The console as an ASGI app: its pages, their live updates, sign-in and actions."""

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlencode

import structlog
from anyio import CapacityLimiter, to_thread
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from client.api import RefeedApi
from console.actions import ACTIONS, answer_action
from console.backfill import read_letter_payload
from console.forms import Action
from console.guard import (
    FORM_COOKIE,
    ConsoleHeaders,
    StrangerCheck,
    check_own_page,
    form_token,
    is_secure,
    own_path,
    read_form,
)
from console.live import SIGNED_OUT, stream_page
from console.messages import find_scan_range, read_payload, scan_messages
from console.new_backfill import check_query
from console.pages import PAGES, Page
from console.sign_in import (
    NOT_STARTED,
    answer_of,
    find_attempt,
    find_provider,
    forget_attempt,
    keep_attempt,
)
from console.sources import read_source_letter_payload
from console.view import MEDIA_TYPES, asset_url, make_url, parse_zone, read_asset, render
from console.visit import SESSION_COOKIE, RecentReads, SignedOutError, Visit, problem_of, read_part
from console.volumes import read_cells
from model.errors import ApiUnavailableError, ForbiddenError, RefeedError, RequestRefusedError, RequestTimeoutError

_LOG: Final = structlog.get_logger(__name__)
_MAX_THREADS: Final = 16
_SEE_OTHER: Final = 303
_MOVED: Final = 308
_NOT_FOUND: Final = 404
_UNAVAILABLE: Final = 503
_KEY_REFUSED: Final = "The API does not accept this key. The key is wrong, has expired, or was revoked."
_A_YEAR_SECONDS: Final = 365 * 86400

_T = TypeVar("_T")
# Returns where the API of a request to the console is.
FindApi = Callable[[Scope], str]
Answer = Callable[[Request], Awaitable[Response]]


class Console:
    """The console over the API that ``find_api`` names; an ASGI app whose paths begin with ``/console``.

    It keeps no page's state: what a page shows is in its URL and in the API, and who looks at it in a cookie, so
    that any replica answers any request. ``find_stranger`` keeps web pages and proxies out of an API without keys.
    ``is_stopping`` tells live pages to end.
    """

    def __init__(
        self, find_api: FindApi, *, find_stranger: StrangerCheck, is_stopping: Callable[[], bool]
    ) -> None:
        self._find_api = find_api
        self._find_stranger = find_stranger
        self._is_stopping = is_stopping
        self._apis: dict[str, RefeedApi] = {}
        self._recent = RecentReads()
        # Threads of its own: the API that it calls may be answered by the same process.
        self._threads = CapacityLimiter(_MAX_THREADS)
        routes = [
            Route("/console/assets/{name}", self._answered(_get_asset)),
            Route("/console/sign-in", self._answered(self._show_sign_in), methods=["GET"]),
            Route("/console/sign-in", self._answered(self._sign_in), methods=["POST"]),
            Route("/console/sign-in/provider", self._answered(self._start_sign_in)),
            Route("/console/sign-in/callback", self._answered(self._complete_sign_in)),
            Route("/console/sign-out", self._answered(self._sign_out), methods=["POST"]),
        ]
        routes.append(Route("/console/queries/check", self._answered(self._check_query), methods=["POST"]))
        routes.append(Route("/console/scan/{topic}", self._answered(self._scan)))
        routes.append(Route("/console/heat/{topic}", self._answered(self._read_cells)))
        for path, read_data in (
            ("/topics/{topic}/message/data", read_payload),
            ("/jobs/{id}/dead-letters/{row}/data", read_letter_payload),
            ("/sources/{name}/dead-letters/data", read_source_letter_payload),
        ):
            routes.append(Route(f"/console{path}", self._answered(self._download(read_data))))
        # Before the former addresses of pages: /backfills/new is none.
        for action in ACTIONS:
            answer = self._answered(self._action(action))
            routes.append(Route(f"/console{action.path}", answer, methods=["GET", "POST"]))
        for page in PAGES:
            routes.append(Route(f"/console{page.path}", self._answered(self._page(page))))
            if page.every_seconds is not None:
                live = self._answered(self._live(page, page.every_seconds))
                routes.append(Route(f"/console/live{page.path}", live))
        former = ("/console/backfills", "/console/backfills/{rest:path}")
        routes.extend(Route(path, self._answered(_lead_on)) for path in former)
        self._app = Starlette(
            routes=routes,
            middleware=[Middleware(ConsoleHeaders)],
            exception_handlers={404: self._not_found},
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        await self._app(scope, receive, send)

    def close(self) -> None:
        """Close the connections to the API; the next request opens others."""
        apis, self._apis = self._apis, {}
        for api in apis.values():
            api.close()

    def _page(self, page: Page) -> Answer:
        async def answer(request: Request) -> Response:
            visit = await self._visit(request)
            context = await self._run(lambda: page.read(visit))
            if (missing := _find_missing(context)) is not None:
                return _error_page(request, missing["detail"], missing["code"], _NOT_FOUND)
            whole = {**context, "visit": visit, "page": page}
            return _html(request, visit.form_token, page.template, whole, context.get("http_status", 200))

        return answer

    def _live(self, page: Page, seconds: float) -> Answer:
        async def answer(request: Request) -> Response:
            check_own_page(request)
            visit = await self._visit(request, recent=self._recent)

            def read() -> str:
                now = self._look_again(visit)

                def draw() -> str:
                    return render(page.live, {**page.read(now), "visit": now, "page": page})

                return self._recent.read(now.rights, f"{now.path} {now.params} {now.zone.key}", draw)

            events = stream_page(
                lambda: self._run(read),
                every_seconds=seconds,
                zone=visit.zone,
                is_stopping=self._is_stopping,
            )
            return _event_stream(events)

        return answer

    def _action(self, action: Action) -> Answer:
        async def answer(request: Request) -> Response:
            visit = await self._visit(request)
            fields = None if request.method == "GET" else await read_form(request, visit.session)
            result = await self._run(lambda: answer_action(action, visit, fields))
            if isinstance(result, str):
                # A page that asks once a minute would show for so long what was before.
                self._recent.forget()
                return RedirectResponse(make_url(result, visit.zone), _SEE_OTHER)
            template, status = result.pop("template"), result.pop("status")
            return _html(request, visit.form_token, template, {**result, "visit": visit}, status)

        return answer

    async def _visit(self, request: Request, *, recent: RecentReads | None = None) -> Visit:
        """Return who comes, as the API knows them.

        Raises:
            SignedOutError: it does not know them.
            ForbiddenError: the API is open to this machine's own programs, and this is something else.
            ApiUnavailableError: it does not answer.
        """
        session = request.cookies.get(SESSION_COOKIE)
        api = self._api_of(request).as_caller(session)
        try:
            caller = await self._run(api.read_session)
        except RequestRefusedError as refused:
            problem_of(refused)
            raise
        if caller["is_open"] and (problem := self._find_stranger(request.scope)) is not None:
            raise ForbiddenError(problem)
        if caller["is_open"]:
            session = None
        visit = Visit(
            api=api,
            session=session,
            caller=caller,
            # Boxes of one name are one list.
            params={name: ",".join(request.query_params.getlist(name)) for name in request.query_params},
            path_params=dict(request.path_params),
            path=request.url.path.replace("/console/live", "/console", 1),
            zone=parse_zone(request.query_params.get("zone")),
            form_token=form_token(_form_cookie(request), session),
            recent=recent,
        )
        # The header of an error's page is that of any other page.
        request.state.visit = visit
        return visit

    def _look_again(self, visit: Visit) -> Visit:
        """Return the visit of a page that stays open, with what its caller may do now.

        What the page shows may have been read for another one, which says nothing about this one's session.

        Raises:
            SignedOutError: the session or its key has ended.
            ApiUnavailableError: the API does not answer.
        """
        if visit.session is None:
            return visit
        found = read_part(visit.api.read_session)
        return visit if found.problem is not None else replace(visit, caller=found.data)

    async def _check_query(self, request: Request) -> Response:
        visit = await self._visit(request)
        fields = await read_form(request, visit.session)
        return JSONResponse(await self._run(lambda: check_query(visit, fields)))

    async def _read_cells(self, request: Request) -> Response:
        check_own_page(request)
        visit = await self._visit(request)
        return JSONResponse(await self._run(lambda: read_cells(visit)))

    async def _scan(self, request: Request) -> Response:
        check_own_page(request)
        visit = await self._visit(request)
        topic = request.path_params["topic"]
        start, end = find_scan_range(visit)
        events = scan_messages(visit, topic, start, end, is_stopping=self._is_stopping)
        return _event_stream(events)

    def _download(self, read: Callable[[Visit], bytes]) -> Answer:
        async def answer(request: Request) -> Response:
            visit = await self._visit(request)
            data = await self._run(lambda: read(visit))
            headers = {"Content-Disposition": f'attachment; filename="{_file_name(visit.params.get("id", ""))}"'}
            return Response(data, media_type="application/octet-stream", headers=headers)

        return answer

    async def _show_sign_in(self, request: Request) -> Response:
        return await self._sign_in_page(request, own_path(request.query_params.get("return")))

    async def _sign_in_page(self, request: Request, back: str, problem: str | None = None) -> Response:
        status = 200 if problem is None else 403
        try:
            provider = await self._run(lambda: find_provider(self._api_of(request)))
        except ApiUnavailableError as away:
            provider, problem = None, problem or away.message
        context = {"back": back, "problem": problem, "provider": provider}
        token = form_token(_form_cookie(request), None)
        return _html(request, token, "sign_in.html", context, status)

    async def _sign_in(self, request: Request) -> Response:
        fields = await read_form(request, None)
        back = own_path(fields.get("return"))
        api = self._api_of(request).as_caller(fields.get("key", "").strip() or None)
        try:
            opened = await self._run(api.open_session)
        except RequestRefusedError as refused:
            try:
                said = str(problem_of(refused)["detail"])
            except SignedOutError:
                said = _KEY_REFUSED
            return await self._sign_in_page(request, back, said)
        return _signed_in(request, opened, back)

    async def _start_sign_in(self, request: Request) -> Response:
        # A link, not a form: form-action 'self' would keep the browser from following it to the provider.
        check_own_page(request)
        started = await self._run(self._api_of(request).start_sign_in)
        response = RedirectResponse(started["authorization_url"], _SEE_OTHER)
        keep_attempt(request, response, started, own_path(request.query_params.get("return")))
        return response

    async def _complete_sign_in(self, request: Request) -> Response:
        """Complete the sign-in of the browser that comes back from the provider with its attempt's cookie."""
        answer = answer_of(request)
        state = answer.get("state")
        found = find_attempt(request, state)
        if found is None:
            return await self._sign_in_page(request, "/console", NOT_STARTED)
        attempt, back = found
        try:
            opened = await self._run(lambda: self._api_of(request).complete_sign_in(attempt, answer))
        except (RequestRefusedError, ApiUnavailableError) as refused:
            response = await self._sign_in_page(request, back, refused.message)
        else:
            response = _signed_in(request, opened, back)
        forget_attempt(response, state)
        return response

    async def _sign_out(self, request: Request) -> Response:
        session = request.cookies.get(SESSION_COOKIE)
        await read_form(request, session)
        provider_url = None
        # One that has ended already is all that was wanted.
        with suppress(RequestRefusedError):
            ended = await self._run(self._api_of(request).as_caller(session).end_session)
            provider_url = ended.get("provider_sign_out_url")
        if provider_url is None:
            response: Response = RedirectResponse("/console/sign-in", _SEE_OTHER)
        else:
            # A page that leads on: form-action 'self' keeps a form's answer from redirecting to the provider.
            response = _html(request, "", "signed_out.html", {"provider_url": provider_url})
        response.delete_cookie(SESSION_COOKIE, path="/console")
        return response

    def _api_of(self, request: Request) -> RefeedApi:
        url = self._find_api(request.scope)
        if url not in self._apis:
            self._apis[url] = RefeedApi(url)
        return self._apis[url]

    async def _run(self, call: Callable[[], _T]) -> _T:
        return await to_thread.run_sync(call, limiter=self._threads)

    def _answered(self, answer: Answer) -> Answer:
        """Return the endpoint with its errors answered as pages."""

        async def answered(request: Request) -> Response:
            try:
                return await answer(request)
            except SignedOutError:
                if f"{request.url.path}/".startswith("/console/live/"):
                    return Response(SIGNED_OUT, media_type="text/event-stream")
                return RedirectResponse(_sign_in_url(request), _SEE_OTHER)
            except Exception as error:  # noqa: BLE001 - a page with a header, and the bug in the log
                return _answer_error(request, error)

        return answered

    async def _not_found(self, request: Request, _: Exception) -> Response:
        with suppress(RefeedError, SignedOutError):
            await self._visit(request)
        return _error_page(request, "There is no such page.", "not_found", 404)


async def _lead_on(request: Request) -> Response:
    """Lead from a backfill's former address to the job's, and from their list's to that of jobs."""
    rest = request.path_params.get("rest")
    query = request.query_params if rest else {"kind": "backfill", **request.query_params}
    path = f"/console/jobs/{quote(rest)}" if rest else "/console/jobs"
    return RedirectResponse(f"{path}?{urlencode(query)}" if query else path, _MOVED)


async def _get_asset(request: Request) -> Response:
    name = request.path_params["name"]
    content, suffix = read_asset(name), "." + name.rpartition(".")[2]
    if content is None or suffix not in MEDIA_TYPES:
        return Response(status_code=404)
    # Where the address has the content's digest in it, it never changes; modules import each other without.
    is_dated = str(request.url.query) == asset_url(name).partition("?")[2]
    kept = f"public, max-age={_A_YEAR_SECONDS}, immutable" if is_dated else "no-cache"
    headers = {"Cache-Control": kept}
    return Response(content, media_type=MEDIA_TYPES[suffix], headers=headers)


def _event_stream(events: AsyncIterator[str]) -> Response:
    # No proxy keeps events back.
    return StreamingResponse(events, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})


def _signed_in(request: Request, opened: Mapping[str, Any], back: str) -> Response:
    response = RedirectResponse(back, _SEE_OTHER)
    _set_cookie(request, response, SESSION_COOKIE, opened["token"], seconds=None)
    return response


def _find_missing(context: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the problem of a page about something that does not exist, of which ``found`` is the main part."""
    found = context.get("found")
    problem: Mapping[str, Any] | None = None if found is None else found.problem
    return problem if problem is not None and problem.get("status") == _NOT_FOUND else None


def _file_name(message_id: str) -> str:
    """Return a name for a payload's file, of what every file system takes."""
    return "".join(each for each in message_id if each.isascii() and each.isalnum())[:100] or "message"


def _answer_error(request: Request, error: Exception) -> Response:
    match error:
        case ApiUnavailableError():
            return _error_page(request, error.message, error.code, _UNAVAILABLE)
        case ForbiddenError():
            return _error_page(request, error.message, error.code, 403)
        case RequestTimeoutError():
            return _error_page(request, error.message, error.code, 408)
        case RequestRefusedError():
            code, status = error.details.get("code", error.code), int(error.details.get("status", 500))
            return _error_page(request, str(error.details.get("detail", error.message)), str(code), status)
    _LOG.error("console_failed", path=request.url.path, exc_info=error)
    return _error_page(request, "The console could not answer. Its process has logged the error.", "internal", 500)


def _error_page(request: Request, message: str, code: str, status: int) -> Response:
    context: dict[str, Any] = {"message": message, "code": code, "is_away": status == _UNAVAILABLE}
    visit: Visit | None = getattr(request.state, "visit", None)
    if visit is not None:
        context["visit"] = visit
    return _html(request, "" if visit is None else visit.form_token, "error.html", context, status)


def _sign_in_url(request: Request) -> str:
    # What a form sent is not sent again by itself.
    back = f"{request.url.path}?{request.url.query}" if request.url.query else request.url.path
    return f"/console/sign-in?{urlencode({'return': own_path(back)})}"


def _html(request: Request, token: str, template: str, context: dict[str, Any], status: int = 200) -> Response:
    response = HTMLResponse(render(template, {"form_token": token, **context}), status)
    if FORM_COOKIE not in request.cookies:
        _set_cookie(request, response, FORM_COOKIE, _form_cookie(request), seconds=_A_YEAR_SECONDS)
    return response


def _form_cookie(request: Request) -> str:
    """Return the random text that forms of this browser are bound to; a new browser gets one with this answer."""
    if not hasattr(request.state, "form_cookie"):
        request.state.form_cookie = request.cookies.get(FORM_COOKIE) or secrets.token_urlsafe(32)
    found: str = request.state.form_cookie
    return found


def _set_cookie(request: Request, response: Response, name: str, value: str, *, seconds: int | None) -> None:
    response.set_cookie(
        name, value, max_age=seconds, path="/console", secure=is_secure(request), httponly=True, samesite="lax"
    )
