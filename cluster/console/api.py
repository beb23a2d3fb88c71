"""Api: executes the rows of the route table for HTTP requests, in threads, as the user of the request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import orjson
from aiohttp import web

from actors.bounds import Use
from cluster.client.errors import ClientError
from cluster.console.access import ConsoleAccess
from cluster.console.api_errors import ApiError, api_error
from cluster.console.changes import ChangeLog
from cluster.console.console_settings import ConsoleSettings
from cluster.console.guard import check_host_header, check_origin
from cluster.console.lanes import WAITING, RequestLane
from cluster.console.openapi import PREFIX, document
from cluster.console.rights import no_broker
from cluster.console.routes import ChangeDone, ListPart, Route, parse
from store.common.logs import get_logger
from store.store_errors import MessageInvalid

_log = get_logger(__name__)

COOKIE = "raymq_console"
THREADS, CLIENT_WAITING_MAX = 16, 100
SEARCH_THREADS, CLIENT_SEARCHES_MAX = 8, 16
BODY_BYTES_MAX = 64 * 1024
PARAMETERS_MAX = 50
_JSON = orjson.OPT_STRICT_INTEGER


class Api:
    """The API as handlers of aiohttp."""

    def __init__(
        self, routes: Sequence[Route], access: ConsoleAccess, changes: ChangeLog, settings: ConsoleSettings
    ) -> None:
        self._routes = routes
        self._access = access
        self._changes = changes
        self._settings = settings
        self._nameservers = ";".join(settings.nameservers)
        self._pages = RequestLane("console", THREADS, CLIENT_WAITING_MAX)
        self._searches = RequestLane("console-search", SEARCH_THREADS, CLIENT_SEARCHES_MAX)

    def handlers(self) -> list[web.RouteDef]:
        """Return the handlers of all paths below the prefix."""
        serve, routes = self._serve, self._routes
        return [
            *(web.route(each.method, f"{PREFIX}{each.path}", partial(serve, each)) for each in routes),
            web.get(f"{PREFIX}/openapi.json", self._openapi),
            web.get(f"{PREFIX}/session", self._session),
            web.post(f"{PREFIX}/login", self._login),
            web.post(f"{PREFIX}/logout", self._logout),
            web.route("*", f"{PREFIX}/{{path:.*}}", self._unknown),
        ]

    @property
    def waiting(self) -> int:
        """Number of requests that run or wait for a thread."""
        return self._pages.waiting + self._searches.waiting

    def bounds(self) -> Sequence[Use]:
        """Return the uses of bounds."""
        return (WAITING.use(lambda: max(self._pages.waiting, self._searches.waiting)),)

    def close(self) -> None:
        """Stop the threads after their present work."""
        self._pages.close()
        self._searches.close()

    @web.middleware
    async def errors(self, request: web.Request, handler: Callable[[web.Request], Any]) -> web.StreamResponse:
        """Middleware: check the host, and turn every exception into a response with a sentence."""
        try:
            if self._settings.is_local:
                check_host_header(request, self._settings.listen_host)
            response: web.StreamResponse = await handler(request)
        except ApiError as error:
            return _json(error.to_json(), error.status)
        except (ClientError, MessageInvalid) as error:
            found = api_error(error)
            return _json(found.to_json(), found.status)
        except web.HTTPException as error:
            remedy = "Check the address."
            return _json({"error": f"{request.path[:80]}: {error.reason}", "remedy": remedy}, error.status)
        except Exception:  # noqa: BLE001 - logged; the page shows a sentence instead of a stack trace
            _log.exception("console_request_failed", path=request.path)
            text = "the console has failed to serve this request"
            return _json({"error": text, "remedy": "See console_request_failed in its log."}, 500)
        return response

    async def _serve(self, route: Route, request: web.Request) -> web.Response:
        check_origin(request, is_change=route.is_change)
        in_path = dict(request.match_info)
        given = {**await self._given(request, has_body=route.method == "POST"), **in_path}
        parameters = parse(route.parameters, given, strict=route.method == "POST")
        command = route.command_line(parameters, self._nameservers)
        is_applied = route.is_change and not parameters["dry_run"]
        if is_applied and self._settings.read_only:
            raise ApiError(403, "this console is read-only", "Use the command line, or another console.")
        token = request.cookies.get(COOKIE)

        def work() -> Any:
            user, admin = self._access.admin_of(token)
            if not admin.brokers():
                raise no_broker()
            try:
                result = route.run(admin, parameters)
            except (ClientError, ApiError) as error:
                if is_applied:
                    self._changes.add(user, route.summary, command, str(error))
                raise
            if is_applied and isinstance(result, ChangeDone):
                self._changes.add(user, result.what, command)
            return result

        lane = self._searches if route.is_search else self._pages
        found = await lane.run(self._client_of(request), work)
        if isinstance(found, ListPart):
            return _json({"data": found.rows, "command": command, "total": found.total, "next": found.next})
        return _json({"data": found, "command": command})

    async def _openapi(self, request: web.Request) -> web.Response:
        return _json(document(self._routes))

    async def _session(self, request: web.Request) -> web.Response:
        """Return what the pages must know before a login."""
        check_origin(request, is_change=False)
        token = request.cookies.get(COOKIE)
        user = await self._pages.run(self._client_of(request), lambda: self._access.user_of(token))
        settings, is_required = self._settings, self._access.is_required
        nameservers = None if user is None else self._nameservers
        found = {"user": user, "login_required": is_required, "nameservers": nameservers}
        return _json(found | {"read_only": settings.read_only, "bodies": settings.bodies})

    async def _login(self, request: web.Request) -> web.Response:
        check_origin(request, is_change=True)
        given = await self._given(request, has_body=True)
        user, secret = given.get("user"), given.get("secret")
        if not isinstance(user, str) or not isinstance(secret, str) or len(given) > 2:
            raise ApiError(400, "a login has the fields user and secret, both texts", "Give both.")
        address = request.remote or ""
        token = await self._pages.run(
            self._client_of(request), lambda: self._access.login(user, secret, address)
        )
        response = _json({"user": user})
        is_secure = self._settings.tls_certificate is not None
        response.set_cookie(COOKIE, token, httponly=True, samesite="Strict", secure=is_secure, path="/")
        return response

    async def _logout(self, request: web.Request) -> web.Response:
        check_origin(request, is_change=True)
        token = request.cookies.get(COOKIE, "")
        await self._pages.run(self._client_of(request), lambda: self._access.logout(token))
        response = _json({"user": None})
        response.del_cookie(COOKIE, path="/")
        return response

    async def _unknown(self, request: web.Request) -> web.Response:
        shown = f"{request.method} {request.path[:80]}"
        raise ApiError(404, f"{shown} does not exist", f"{PREFIX}/openapi.json lists all paths.")

    def _client_of(self, request: web.Request) -> str:
        """Return what the shares of threads are counted by: the session, or the address without one."""
        token = request.cookies.get(COOKIE, "")
        return token if self._access.has_session(token) else request.remote or ""

    async def _given(self, request: web.Request, *, has_body: bool) -> dict[str, Any]:
        """Return the parameters of the query, or of the JSON body. Raises ApiError."""
        limit_ms = self._settings.request_timeout_ms
        try:
            async with asyncio.timeout(limit_ms / 1000):
                return await _parameters(request, has_body=has_body)
        except TimeoutError:
            text = f"the body did not arrive within request_timeout_ms {limit_ms:,}"
            raise ApiError(408, text, "Send it at once.") from None


async def _parameters(request: web.Request, *, has_body: bool) -> dict[str, Any]:
    if request.query_string and has_body:
        raise ApiError(400, "this request has parameters in its address", "Give them in the JSON body.")
    if not has_body:
        if request.query_string.count("&") >= PARAMETERS_MAX:
            raise ApiError(400, f"there are over {PARAMETERS_MAX} parameters", "Give fewer.")
        if len(set(request.query)) < len(request.query):
            raise ApiError(400, "a parameter is given twice", "Give each parameter once.")
        return dict(request.query)
    try:
        found = orjson.loads(await request.read())
    except orjson.JSONDecodeError as error:
        raise ApiError(400, f"the body is not valid JSON: {error}", "Give a JSON object.") from None
    except web.HTTPRequestEntityTooLarge:
        raise ApiError(413, f"the body is over {BODY_BYTES_MAX:,} bytes", "Send a smaller one.") from None
    if not isinstance(found, dict):
        raise ApiError(400, f"the body is a {type(found).__name__}", "Give a JSON object.")
    return found


def _json(value: object, status: int = 200) -> web.Response:
    """Return a response with JSON. Numbers that JavaScript cannot hold exactly are texts."""
    try:
        body = orjson.dumps(value, option=_JSON)
    except orjson.JSONEncodeError:
        body = orjson.dumps(_exact(orjson.loads(orjson.dumps(value))))
    headers = {"Cache-Control": "no-store"}
    return web.Response(body=body, status=status, content_type="application/json", headers=headers)


def _exact(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _exact(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_exact(each) for each in value]
    return str(value) if isinstance(value, int) and abs(value) >= 1 << 53 else value
