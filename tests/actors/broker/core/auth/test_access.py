"""A broker with authentication and authorization: which requests it serves, over sockets."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import msgpack
import orjson
import pytest

from actors.broker.service import BrokerService
from actors.wire.bodies.groups import HeartbeatData
from actors.wire.codes import RayMQRequestCode, RequestCode
from actors.wire.command import RemotingCommand
from actors.wire.headers import ConsumerSendMsgBackHeader, ViewMessageHeader
from actors.wire.hot_headers import PullMessageHeader, SendMessageHeader
from actors.wire.signing import SIGNATURE, Credentials, Signer
from store.common.clock import SystemClock
from store.store_errors import StoreError
from tests.actors.broker.brokers import TIMEOUT_MS, Peer, run, settings_of, with_broker
from tests.actors.broker.core.auth.access_peers import (
    DENIED,
    INNER,
    SECRETS,
    Connect,
    SigningPeer,
    entry,
    inner_file,
    with_access,
)
from tests.actors.broker.features.transactions.transactions import COMMIT, begin, end, settled


def send_command(topic: str = "T") -> RemotingCommand:
    return RemotingCommand(RequestCode.SEND_MESSAGE_V2, SendMessageHeader("PG", topic, 0).to_ext(), b"hello")


def test_unsigned_wrong_and_unknown_signatures_are_refused(tmp_path: Path) -> None:
    async def story(inner: SigningPeer, connect: Connect) -> None:
        stranger = Peer(inner.broker)
        remarks = []
        for credentials in (None, Credentials("inner", "guess"), Credentials("nosuch", "guess")):
            command = send_command()
            if credentials is not None:
                Signer(credentials).sign(command, SystemClock().wall_ms())
            response = await stranger.client.invoke(inner.broker.address, command, TIMEOUT_MS)
            assert response.code == DENIED
            remarks.append(response.remark or "")
        await stranger.client.close()
        assert "the request is not signed" in remarks[0]
        # The response does not tell apart an unknown user and a wrong key.
        assert remarks[1].replace("inner", "?") == remarks[2].replace("nosuch", "?")
        assert (await inner.send("T")).code == 0

    with_access(story, tmp_path)


def test_every_request_code_needs_a_signature(tmp_path: Path) -> None:
    async def story(inner: SigningPeer, connect: Connect) -> None:
        stranger = Peer(inner.broker)
        for code in (*inner.loop.requests.rows, 9999):
            response = await stranger.ask(code, {"topic": "T", "username": "u"}, b"{}")
            # A header that cannot be decoded is refused before its signature is checked.
            assert response.code == DENIED or re.search(
                r"header field `\w+` is missing", response.remark or ""
            )
        await stranger.client.close()

    with_access(story, tmp_path)


def test_signed_request_that_was_changed_on_its_way_is_refused(tmp_path: Path) -> None:
    async def story(inner: SigningPeer, connect: Connect) -> None:
        stranger = Peer(inner.broker)
        for change in ("body", "queue"):
            command = send_command()
            Signer(INNER).sign(command, SystemClock().wall_ms())
            if change == "body":
                command.body = b"other"
            else:
                command.ext["e"] = "1"
            response = await stranger.client.invoke(inner.broker.address, command, TIMEOUT_MS)
            assert response.code == DENIED
        await stranger.client.close()

    with_access(story, tmp_path)


def test_user_needs_policies_and_loses_access_when_disabled_or_deleted(tmp_path: Path) -> None:
    async def story(inner: SigningPeer, connect: Connect) -> None:
        await inner.create_user("alice")
        alice = connect("alice")
        refused = await alice.send("T")
        assert refused.code == DENIED
        assert "User:alice has no permission to pub on topic 'T' from 127.0.0.1" in (refused.remark or "")
        await inner.permit("alice", "Topic:T", "Pub")
        assert (await alice.send("T")).code == 0
        assert (await alice.send("T2")).code == DENIED
        assert (await alice.pull("T")).code == DENIED
        await inner.update_user("alice", userStatus="disable")
        assert "user 'alice' is disabled" in ((await alice.send("T")).remark or "")
        await inner.update_user("alice", userStatus="enable")
        assert (await alice.send("T")).code == 0
        await inner.ask(RequestCode.AUTH_DELETE_USER, {"username": "alice"})
        assert (await alice.send("T")).code == DENIED
        await inner.create_user("alice")  # the policies were deleted with the user
        assert (await alice.send("T")).code == DENIED

    with_access(story, tmp_path)


def test_consumer_needs_its_topic_and_its_group(tmp_path: Path) -> None:
    async def story(inner: SigningPeer, connect: Connect) -> None:
        await inner.send("T")
        await inner.create_user("bob")
        bob = connect("bob")
        await inner.permit("bob", "Topic:T", "Sub")
        assert (await bob.pull("T")).code == DENIED
        await inner.permit("bob", "Group:CG", "Sub")
        assert [message.body for message in await bob.messages("T")] == [b"hello"]
        assert (await bob.heartbeat("client-1", "CG", T="*")).code == 0
        assert (await bob.heartbeat("client-1", "CG", T2="*")).code == DENIED
        assert (await bob.heartbeat("client-1", "other", T="*")).code == DENIED
        assert (await bob.offset(RequestCode.GET_MAX_OFFSET, "T")) == 1
        assert (await bob.committed("CG", "T")).code != DENIED
        assert (await bob.committed("other", "T")).code == DENIED

    with_access(story, tmp_path)


def test_producer_group_and_own_retry_topic_need_no_policy_of_their_own(tmp_path: Path) -> None:
    async def story(inner: SigningPeer, connect: Connect) -> None:
        await inner.create_user("bob")
        bob = connect("bob")
        beat = HeartbeatData("client-1", [], ["PG"]).encode()
        assert (await bob.ask(RequestCode.HEART_BEAT, body=beat)).code == 0
        await inner.permit("bob", "Group:CG", "Sub")
        assert (await bob.heartbeat("client-1", "CG", **{"%RETRY%CG": "*"})).code == 0
        # RocketMQ lets a member of CG read the retry topic of any group.
        pull = PullMessageHeader("CG", "%RETRY%other", 0, 0, subscription="*").to_ext()
        assert (await bob.ask(RequestCode.PULL_MESSAGE, pull)).code == DENIED

    with_access(story, tmp_path)


def test_record_of_another_topic_cannot_be_read_by_its_position(tmp_path: Path) -> None:
    async def story(inner: SigningPeer, connect: Connect) -> None:
        await inner.send("secret")
        await inner.send("T")
        await inner.create_user("bob")
        bob = connect("bob")
        await inner.permit("bob", "Topic:T", "Sub")
        await inner.permit("bob", "Group:CG", "Sub")
        await inner.heartbeat("client-1", "CG", T="*")
        (secret,), (own,) = await inner.messages("secret"), await inner.messages("T")
        for message, code in ((secret, DENIED), (own, 0)):
            view = ViewMessageHeader(message.commit_log_offset, "T").to_ext()
            back = ConsumerSendMsgBackHeader(message.commit_log_offset, "CG", 1, origin_topic="T").to_ext()
            assert (await bob.ask(RequestCode.VIEW_MESSAGE_BY_ID, view)).code == code
            assert (await bob.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back)).code == code

    with_access(story, tmp_path)


def test_transaction_of_another_topic_cannot_be_ended(tmp_path: Path) -> None:
    async def story(inner: SigningPeer, connect: Connect) -> None:
        half = await begin(inner)
        await inner.create_user("alice")
        alice = connect("alice")
        await inner.permit("alice", "Topic:T2", "Pub")
        for topic in ("", "T", "T2"):  # clients before 5.0 do not send the topic
            assert (await end(alice, half, COMMIT, topic=topic)).code != 0
        await inner.permit("alice", "Topic:T", "Pub")
        assert (await end(alice, half, COMMIT)).code == 0
        await settled(inner)
        assert [message.body for message in await inner.messages("T")] == [b"half"]

    with_access(story, tmp_path)


def test_rule_with_source_addresses_applies_only_to_them(tmp_path: Path) -> None:
    async def story(inner: SigningPeer, connect: Connect) -> None:
        await inner.create_user("alice")
        alice = connect("alice")
        await inner.permit("alice", "Topic:T", "Pub", sources=["10.0.0.0/8"])
        assert (await alice.send("T")).code == DENIED
        await inner.permit("alice", "Topic:T", "Pub", sources=["10.0.0.0/8", "127.0.0.0/8"])
        assert (await alice.send("T")).code == 0

    with_access(story, tmp_path)


def test_deny_rule_overrides_a_general_permission(tmp_path: Path) -> None:
    async def story(inner: SigningPeer, connect: Connect) -> None:
        await inner.create_user("alice")
        alice = connect("alice")
        await inner.permit("alice", "Topic:*", "Pub")
        await inner.permit("alice", "Topic:pay*", "Pub", decision="Deny")
        assert (await alice.send("T")).code == 0
        refused = await alice.send("payments")
        assert refused.code == DENIED
        assert "the decision is deny" in (refused.remark or "")

    with_access(story, tmp_path)


def test_cluster_requests_need_a_rule_for_the_cluster(tmp_path: Path) -> None:
    async def story(inner: SigningPeer, connect: Connect) -> None:
        await inner.create_user("alice")
        alice = connect("alice")
        await inner.permit("alice", "Topic:*", "All")
        await inner.permit("alice", "Group:*", "All")
        assert (await alice.ask(RequestCode.GET_BROKER_CONFIG)).code == DENIED
        assert (await alice.ask(RayMQRequestCode.GROUP_CHANGED, {"consumerGroup": "G"}, b"{}")).code == DENIED
        await inner.permit("alice", "Cluster:DefaultCluster", "Get")
        assert (await alice.ask(RequestCode.GET_BROKER_CONFIG)).code == 0
        assert (await alice.ask(RequestCode.AUTH_LIST_USER)).code == 0
        assert (await alice.create_user("bob")).code == DENIED

    with_access(story, tmp_path)


def test_super_user_may_do_everything_and_only_it_may_change_super_users(tmp_path: Path) -> None:
    async def story(inner: SigningPeer, connect: Connect) -> None:
        assert (await inner.create_user("root", "Super")).code == 0
        root = connect("root")
        assert (await root.send("T")).code == 0
        assert (await root.create_user("alice")).code == 0
        await root.permit("alice", "Cluster:*", "All")
        alice = connect("alice")
        assert (await alice.create_user("bob")).code == 0
        for refused in (
            await alice.update_user("bob", userType="Super"),
            await alice.update_user("root", password="mine"),
            await alice.ask(RequestCode.AUTH_DELETE_USER, {"username": "root"}),
            await root.ask(RequestCode.AUTH_DELETE_USER, {"username": INNER.access_key}),
            await root.update_user(INNER.access_key, password="mine"),
        ):
            assert refused.code == DENIED
        assert (await root.send("T")).code == 0

    with_access(story, tmp_path)


def test_user_cannot_get_permissions_that_it_does_not_have(tmp_path: Path) -> None:
    """Neither by policies, its own or those of a user that it created, nor with the key of another user."""

    async def story(inner: SigningPeer, connect: Connect) -> None:
        await inner.create_user("alice")
        await inner.permit("alice", "Cluster:*", "All")
        await inner.set_acl("alice", [entry("Topic:secret", ["All"], "Deny")])
        alice = connect("alice")
        assert (await alice.create_user("bob")).code == 0
        for refused in (
            await alice.permit("alice", "*", "All"),
            await alice.permit("alice", "Topic:secret", "Pub"),
            await alice.set_acl("bob", [entry("*", ["All"])], policyType="Default"),
            await alice.ask(RequestCode.AUTH_UPDATE_ACL, {"subject": "User:bob"}, b'{"policies":[]}'),
            await alice.ask(
                RequestCode.AUTH_DELETE_ACL, {"subject": "User:alice", "resource": "Topic:secret"}
            ),
            await alice.ask(RequestCode.AUTH_DELETE_ACL, {"subject": "User:alice"}),
        ):
            assert (refused.code, refused.remark) == (
                DENIED,
                "The policies can only be changed by a super user",
            )
        assert (await alice.update_user("bob", password="new")).code == 0
        await inner.permit("bob", "Topic:secret", "Pub")
        for refused in (
            await alice.update_user("bob", password="mine"),
            await alice.update_user("bob", userStatus="disable"),
            await alice.ask(RequestCode.AUTH_DELETE_USER, {"username": "bob"}),
        ):
            assert (refused.code, "user 'bob' has policies" in (refused.remark or "")) == (DENIED, True)
        assert (await alice.update_user("alice", password="other-secret")).code == 0
        assert (await alice.send("secret")).code == DENIED

    with_access(story, tmp_path)


def test_users_are_listed_without_their_secret_keys(tmp_path: Path) -> None:
    async def story(inner: SigningPeer, connect: Connect) -> None:
        for name in SECRETS:
            await inner.create_user(name)
        await inner.permit("alice", "Topic:T", "Pub")
        bodies = [
            bytes((await inner.ask(RequestCode.AUTH_GET_USER, {"username": "alice"})).body),
            bytes((await inner.ask(RequestCode.AUTH_LIST_USER, {"filter": "o"})).body),
            bytes((await inner.ask(RequestCode.AUTH_GET_ACL, {"subject": "User:alice"})).body),
            bytes((await inner.ask(RequestCode.AUTH_LIST_ACL)).body),
        ]
        assert not any(secret.encode() in body for secret in SECRETS.values() for body in bodies)
        assert orjson.loads(bodies[0]) == {"username": "alice", "userType": "Normal", "userStatus": "enable"}
        assert [user["username"] for user in orjson.loads(bodies[1])] == ["bob", "root"]
        rule = {"resource": "Topic:T", "actions": ["Pub"], "decision": "Allow"}
        acl = {"subject": "User:alice", "policies": [{"policyType": "Custom", "entries": [rule]}]}
        assert orjson.loads(bodies[2]) == acl
        assert orjson.loads(bodies[3]) == [acl]
        assert not (await inner.ask(RequestCode.AUTH_LIST_ACL, {"resourceFilter": "other"})).body
        assert not (await inner.ask(RequestCode.AUTH_GET_USER, {"username": "nosuch"})).body

    with_access(story, tmp_path)


def test_rules_are_replaced_by_resource_and_deleted(tmp_path: Path) -> None:
    async def story(inner: SigningPeer, connect: Connect) -> None:
        await inner.create_user("alice")
        alice = connect("alice")
        await inner.permit("alice", "Topic:T", "Pub")
        await inner.permit("alice", "Topic:T2", "Pub")
        await inner.permit("alice", "Topic:T", "Sub")
        assert (await alice.send("T")).code == DENIED
        update = orjson.dumps({"policies": [{"entries": [entry("Topic:T3", ["Pub"])]}]})
        assert (await inner.ask(RequestCode.AUTH_UPDATE_ACL, {"subject": "User:alice"}, update)).code == 0
        assert (await alice.send("T3")).code == 0
        delete = {"subject": "User:alice", "resource": "Topic:T2"}
        assert (await inner.ask(RequestCode.AUTH_DELETE_ACL, delete)).code == 0
        assert (await alice.send("T2")).code == DENIED
        assert (await inner.ask(RequestCode.AUTH_DELETE_ACL, {"subject": "User:alice"})).code == 0
        again = await inner.ask(RequestCode.AUTH_DELETE_ACL, {"subject": "User:alice"})
        assert (again.code, again.remark) == (DENIED, "The acl is not exist.")

    with_access(story, tmp_path)


@pytest.mark.parametrize(
    ("code", "ext", "body", "expected", "remark"),
    [
        (RequestCode.AUTH_CREATE_USER, {}, b"{}", 29, "The username is blank"),
        (RequestCode.AUTH_CREATE_USER, {"username": " "}, b"{}", 29, "The username is blank"),
        (RequestCode.AUTH_CREATE_USER, {"username": "u"}, b"{}", DENIED, "password can not be blank"),
        (RequestCode.AUTH_CREATE_USER, {"username": "u"}, b"[1]", 29, "not a valid JSON object"),
        (RequestCode.AUTH_CREATE_USER, {"username": "u"}, b'{"password":["top-secret"]}', 29, "`password`"),
        (
            RequestCode.AUTH_CREATE_USER,
            {"username": "u"},
            b'{"password":"top-secret"',
            29,
            "not a valid JSON",
        ),
        (
            RequestCode.AUTH_CREATE_USER,
            {"username": "u\n"},
            b'{"password":"top-secret"}',
            DENIED,
            "not valid",
        ),
        (
            RequestCode.AUTH_CREATE_USER,
            {"username": "u"},
            b'{"password":"top-secret","userType":"Boss"}',
            DENIED,
            "user type 'Boss' is not valid",
        ),
        (RequestCode.AUTH_CREATE_USER, {"username": "u"}, b'{"password":"%b"}' % (b"x" * 600), 29, "512"),
        (RequestCode.AUTH_UPDATE_USER, {"username": "u"}, b"{}", DENIED, "The user is not exist"),
        (RequestCode.AUTH_GET_USER, {}, b"", 29, "The username is blank"),
        (RequestCode.AUTH_CREATE_ACL, {"subject": "User:u"}, b"{}", DENIED, "User:u is not exist"),
        (RequestCode.AUTH_CREATE_ACL, {"subject": "u"}, b"{}", DENIED, "subject 'u' is not valid"),
        (RequestCode.AUTH_CREATE_ACL, {}, b"nonsense", 1, "not a valid"),
        (RequestCode.AUTH_CREATE_ACL, {}, b'{"policies":7}', 1, "policies"),
        (RequestCode.AUTH_DELETE_ACL, {"subject": "User:u"}, b"", DENIED, "is not exist"),
        (RequestCode.AUTH_DELETE_ACL, {"subject": "User:u", "policyType": "x"}, b"", DENIED, "policy type"),
    ],
)
def test_bad_input_is_refused_by_name_and_without_secrets(
    tmp_path: Path, code: RequestCode, ext: dict[str, str], body: bytes, expected: int, remark: str
) -> None:
    async def story(inner: SigningPeer, connect: Connect) -> None:
        response = await inner.ask(code, ext, body)
        assert (response.code, remark in (response.remark or "")) == (expected, True), response.remark
        assert "top-secret" not in (response.remark or "")
        assert (await inner.send("T")).code == 0

    with_access(story, tmp_path)


def test_actor_handle_takes_credentials(tmp_path: Path) -> None:
    async def story(inner: SigningPeer, connect: Connect) -> None:
        await inner.create_user("alice")
        await inner.permit("alice", "Topic:T", "Pub")
        await inner.send("T")
        handle = inner.broker.handle
        alice = {"access_key": "alice", "secret_key": SECRETS["alice"]}
        offsets = {"v": 1, "topic": "T", "group": ""}
        read = {"v": 1, "topic": "T", "queue": 0, "offset": 0}

        async def reply(request: dict[str, object]) -> dict[str, object]:
            call = handle.offsets if "group" in request else handle.read
            return msgpack.unpackb(await call(msgpack.packb(request)))

        assert (await reply(offsets))["code"] == DENIED
        assert (await reply({**offsets, **alice}))["code"] == DENIED
        await inner.permit("alice", "Topic:T", "Pub", "Sub")
        assert (await reply({**offsets, **alice}))["code"] == 0
        assert (await reply({**read, "access_key": "inner", "secret_key": INNER.secret_key}))["code"] == 0
        assert (await reply({**offsets, **alice, "secret_key": "guess"}))["code"] == DENIED
        assert (await reply({**offsets, "access_key": "alice"}))["code"] == 29
        keys = {"access_key": "inner", "secret_key": INNER.secret_key}
        assert msgpack.unpackb(await handle.describe(msgpack.packb({"v": 1, **keys})))["code"] == 0
        for request in (b"", msgpack.packb({"v": 1}), msgpack.packb({"v": 1, **alice})):
            assert msgpack.unpackb(await handle.describe(request))["code"] == DENIED

    with_access(story, tmp_path)


def test_actor_handle_checks_keys_before_it_reads_the_request(tmp_path: Path) -> None:
    async def story(inner: SigningPeer, connect: Connect) -> None:
        await inner.create_user("alice")
        handle = inner.broker.handle
        alice = {"access_key": "alice", "secret_key": SECRETS["alice"]}
        arrow = {"topic": "T", "format": "arrow", "batch": b"no arrow"}
        for method in (handle.append, handle.read, handle.offsets, handle.describe):
            for fields in ({}, {"unknown": 1}, {"topic": 7}, {"secret_key": "x", "access_key": "alice"}):
                assert msgpack.unpackb(await method(msgpack.packb({"v": 1, **fields})))["code"] == DENIED
        for request in (arrow, {**arrow, **alice}, {**arrow, "format": "other", **alice}):
            assert msgpack.unpackb(await handle.append(msgpack.packb({"v": 1, **request})))["code"] == DENIED
        await inner.permit("alice", "Topic:T", "Pub")
        refused = msgpack.unpackb(await handle.append(msgpack.packb({"v": 1, **arrow, **alice})))
        assert (refused["code"], "not a valid Arrow" in refused["remark"]) == (29, True)

    with_access(story, tmp_path)


def test_authentication_without_authorization_permits_every_user(tmp_path: Path) -> None:
    async def story(inner: SigningPeer, connect: Connect) -> None:
        await inner.create_user("alice")
        assert (await connect("alice").send("T")).code == 0
        assert (await Peer(inner.broker).send("T")).code == DENIED

    with_access(story, tmp_path, authorization_enabled=False)


def test_access_control_is_off_by_default_and_adds_no_step(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        steps = peer.loop.server.chain.steps
        assert [type(step).__name__ for step in steps] == ["Admission", "Forwarder", "SlaveRequests"]
        assert (await peer.send("T")).code == 0
        response = await peer.ask(RequestCode.AUTH_LIST_USER)
        assert (response.code, "access control is disabled" in (response.remark or "")) == (DENIED, True)
        assert not (tmp_path / "store" / "config" / "raymqAccess.json").exists()

    with_broker(story, settings_of(tmp_path))


def test_signed_requests_are_served_by_a_broker_without_access_control(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        command = send_command()
        Signer(INNER).sign(command, SystemClock().wall_ms())
        assert SIGNATURE in command.ext
        assert (await peer.client.invoke(peer.broker.address, command, TIMEOUT_MS)).code == 0

    with_broker(story, settings_of(tmp_path))


def test_authentication_needs_a_valid_credentials_file(tmp_path: Path) -> None:
    def start(**settings: object) -> None:
        async def story() -> None:
            broker = BrokerService(
                settings_of(tmp_path, authentication_enabled=True, **settings), SystemClock()
            )
            await broker.start()
            await broker.stop()

        run(story)

    with pytest.raises(StoreError, match="authentication_enabled needs inner_credentials_file"):
        start()
    with pytest.raises(StoreError, match="use an absolute one"):
        start(inner_credentials_file=Path("inner.key"))
    path = inner_file(tmp_path)
    path.chmod(0o644)
    with pytest.raises(StoreError, match="run chmod 600"):
        start(inner_credentials_file=path)
    path.chmod(0o600)
    start(inner_credentials_file=path)
    with pytest.raises(ValueError, match="authorization_enabled needs authentication_enabled"):
        settings_of(tmp_path, authorization_enabled=True)


def test_concurrent_changes_of_users_are_all_kept(tmp_path: Path) -> None:
    async def story(inner: SigningPeer, connect: Connect) -> None:
        responses = await asyncio.gather(*(inner.create_user(name) for name in SECRETS))
        assert [response.code for response in responses] == [0, 0, 0]
        again = await inner.create_user("alice")
        assert (again.code, "The user is existed" in (again.remark or "")) == (DENIED, True)

    with_access(story, tmp_path)

    async def restarted(inner: SigningPeer, connect: Connect) -> None:
        users = orjson.loads((await inner.ask(RequestCode.AUTH_LIST_USER)).body)
        assert [user["username"] for user in users] == sorted(SECRETS)

    with_access(restarted, tmp_path)
