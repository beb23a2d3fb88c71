"""Access: logins with the users of the cluster, and the admin client as which each request acts."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from actors.access.login_failures import LoginFailures, Row, TooManyFailures, row_of
from actors.bounds import AtLimit, Bound, Use
from cluster.client import Admin
from cluster.client.config import ClientConfig
from cluster.client.errors import ClientError, PermissionDenied
from cluster.console.api_errors import ApiError
from cluster.console.rights import Rights
from store.common.clock import NS_PER_MS, Clock
from store.common.logs import get_logger

_log = get_logger(__name__)

TOKEN_BYTES = 32
SESSION_MS = 12 * 3_600_000
SESSIONS: Final = Bound("console_sessions", 1_000, AtLimit.EVICT, "Sessions of all users of the console.")
SESSIONS_OF_USER: Final = Bound(
    "console_sessions_of_user", 50, AtLimit.EVICT, "Sessions of one user of the console."
)
"""Sessions of one user, whose oldest then ends: a user that logs in often must not end those of others."""
CREDENTIAL_CHARACTERS_MAX = 1_024
_NO_RIGHTS = "User:{user} has no permission"
"""Part of the remark for a user that is known but not permitted; RocketMQ's brokers use it too."""


class UnsignedConfig(ClientConfig):
    """Settings of a client that signs no request, whichever credentials the environment names."""

    def request_signer(self) -> None:
        """Return None: requests are not signed."""
        return


@dataclass(frozen=True, slots=True)
class Session:
    """A logged-in user, the admin client that signs as this user, and where it has logged in."""

    user: str
    admin: Admin
    row: Row
    ends_ns: int


class ConsoleAccess:
    """Decides as which user a request acts: the logged-in one, or none if brokers accept every client."""

    def __init__(self, nameservers: str, rights: Rights, clock: Clock, *, always: bool) -> None:
        """Create it. `always`: require a login even before the brokers were found to require signatures."""
        self._nameservers = nameservers
        self._rights = rights
        self._clock = clock
        self.is_required: bool | None = always or None
        """True if requests need a session; None until a broker has responded."""
        self._always = always
        self._unsigned = Admin(config=UnsignedConfig(nameservers=nameservers))
        self._sessions: dict[str, Session] = {}
        self._failures = LoginFailures(clock)

    @property
    def sessions(self) -> int:
        """Number of sessions; those that have ended count until their next request."""
        return len(self._sessions)

    def probe(self) -> None:
        """Find out if the brokers refuse unsigned requests; keep the last result if none responds."""
        try:
            self._probe()
        except ClientError as error:
            _log.debug("console_probe_failed", error=str(error))

    def has_session(self, token: str) -> bool:
        """Return True if a token is that of a session."""
        return token in self._sessions

    def user_of(self, token: str | None) -> str | None:
        """Return the user of a session; "" if no login is required, None if it is or that is unknown."""
        try:
            return self.admin_of(token)[0]
        except (ClientError, ApiError):
            return None

    def admin_of(self, token: str | None) -> tuple[str, Admin]:
        """Return the user of a session and its admin client; "" if no login is required.

        Raises ApiError without a valid session: 401 if a login is required, 503 while that is unknown;
        ClientError if no nameserver responds.
        """
        session = self._sessions.get(token or "")
        if session is not None and self._clock.monotonic_ns() < session.ends_ns:
            return session.user, session.admin
        if session is not None:
            self.logout(token or "")
        if self.is_required is None:
            self._probe()
        if self.is_required is None:
            what = "no broker has responded yet that could say if this console requires a login"
            raise ApiError(503, what, "Start a broker, then try again.")
        if self.is_required:
            raise ApiError(401, "this console requires a login", "Log in as a user of the cluster.")
        return "", self._unsigned

    def login(self, user: str, secret: str, address: str) -> str:
        """Return the token of a new session. Raises ApiError, ClientError."""
        if not user or not secret:  # the credentials of the environment would be used instead
            raise ApiError(400, "user and secret key must not be empty", "Give both.")
        if max(len(user), len(secret)) > CREDENTIAL_CHARACTERS_MAX:
            text = f"user or secret key has over {CREDENTIAL_CHARACTERS_MAX:,} characters"
            raise ApiError(400, text, "Give those of a user of the cluster.")
        row = row_of(user, address)
        is_known = any(each.row == row for each in list(self._sessions.values()))
        try:
            mark = self._failures.begin(user, address, is_known=is_known)
        except TooManyFailures as error:
            raise ApiError(429, str(error), "Wait a minute, then try again.") from None
        try:
            admin = self._logged_in(user, secret)
        except PermissionDenied as error:
            _log.warning("console_login_failed", user=user[:100], address=address)
            raise ApiError(401, f"login of {user[:100]!r} failed: {error.remark}", "Try again.") from None
        except (ClientError, ApiError):  # the secret key was neither right nor wrong
            self._failures.forget(user, address, mark)
            raise
        self._failures.forget(user, address)
        token = secrets.token_urlsafe(TOKEN_BYTES)
        self._make_room(user)
        self._sessions[token] = Session(user, admin, row, self._clock.monotonic_ns() + SESSION_MS * NS_PER_MS)
        _log.info("console_login", user=user[:100], address=address)
        return token

    def logout(self, token: str) -> None:
        """End a session."""
        session = self._sessions.pop(token, None)
        if session is not None:
            session.admin.close()

    def close(self) -> None:
        """End all sessions."""
        for token in list(self._sessions):
            self.logout(token)
        self._unsigned.close()

    def _probe(self) -> None:
        found = self._rights.is_refused(self._unsigned)
        if found is not None:
            self.is_required = found or self._always

    def _logged_in(self, user: str, secret: str) -> Admin:
        """Return a client of a user that a broker knows. Raises PermissionDenied, ApiError, ClientError."""
        if self._rights.sees_cluster(self._unsigned):
            raise ApiError(
                409,
                "the brokers accept requests of every client, so a password would protect nothing",
                "Enable access control on the brokers (docs/security.md), or omit --login.",
            )
        config = ClientConfig(nameservers=self._nameservers, access_key=user, secret_key=secret)
        admin = Admin(config=config)
        try:
            self._rights.check_sees_cluster(admin)
        except PermissionDenied as error:
            if _NO_RIGHTS.format(user=user[:100]) not in error.remark:
                admin.close()
                raise
        except (ClientError, ApiError):
            admin.close()
            raise
        return admin

    def bounds(self) -> Sequence[Use]:
        """Return the uses of bounds."""

        def of_one_user() -> int:
            return max(Counter(each.user for each in self._sessions.values()).values(), default=0)

        sessions = SESSIONS.use(lambda: len(self._sessions))
        return (sessions, SESSIONS_OF_USER.use(of_one_user), *self._failures.bounds())

    def _make_room(self, user: str) -> None:
        """End the oldest session of a user that has too many, or else of all users."""
        own = [token for token, each in self._sessions.items() if each.user == user]
        if len(own) >= SESSIONS_OF_USER.limit:
            self.logout(own[0])
        while len(self._sessions) >= SESSIONS.limit:
            self.logout(next(iter(self._sessions)))
