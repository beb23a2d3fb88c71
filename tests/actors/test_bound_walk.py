"""Every declared bound is shown by its processes, and has a test that reaches it."""

from __future__ import annotations

import ast
import asyncio
import importlib
from collections.abc import Iterator
from pathlib import Path

from actors.bounds import Bound
from actors.broker.service import BrokerService
from actors.gateway.gateway_settings import GatewaySettings
from actors.gateway.service import GatewayService
from actors.host.metrics.page import page
from actors.nameserver.nameserver_settings import NameserverSettings
from actors.nameserver.service import build_nameserver
from cluster.console.console_settings import ConsoleSettings
from cluster.console.service import ConsoleService
from store.clock import SystemClock
from tests.actors.broker.replication.raft.groups import Group
from tests.actors.broker.replication.slaves import master_of

ROOT = Path(__file__).parents[2]
LATE = "tests/actors/broker/compat/test_late_subscriptions.py"
LOGINS = "tests/actors/access/test_login_failures.py"
GATEWAY = "tests/actors/gateway/test_gateway_bounds.py"
GATEWAY_CLIENTS = "tests/actors/gateway/test_clients.py"
GATEWAY_MEMORY = "tests/actors/gateway/test_grpc_memory.py"
HA = "tests/actors/broker/replication/test_ha_fuzz.py"
METRICS = "tests/actors/host/metrics/test_endpoint.py"
PORTS = "tests/actors/remoting/test_ports.py"
CONSOLE = "tests/cluster/console/test_service.py"
CONSOLE_HTTP = "tests/cluster/console/test_http.py"
CONSOLE_ACCESS = "tests/cluster/console/test_access.py"
CONSOLE_API = "tests/cluster/console/test_api.py"
TABLES = "tests/actors/broker/test_table_limits.py"
SIGNATURES = "tests/actors/broker/auth/test_signatures.py"
REPLIES = "tests/actors/broker/auth/test_replies.py"
HELD = "tests/actors/broker/loop/test_wait_registry.py"
CLAIMS = "tests/actors/broker/pop/test_claims.py"
REVIVE = "tests/actors/broker/pop/test_revive_bounds.py"
POPS = "tests/actors/broker/pop/test_pops.py"
POPPING_GROUPS = "tests/actors/broker/group/test_popping_groups.py"
CLIENTS = "tests/actors/broker/group/test_clients.py"
FORWARDING = "tests/actors/broker/replication/raft/test_forwarding.py"

TESTS = {
    "connections": (PORTS, "test_new_peer_is_refused_while_all_others_are_served_or_have_just_asked"),
    "connections_per_address": (TABLES, "test_connections_of_one_address_are_bounded"),
    "console_connections": (CONSOLE, "test_connections_without_a_request_give_their_place_to_others"),
    "console_cursors": (CONSOLE_API, "test_oldest_search_cannot_be_continued_over_the_limit"),
    "console_sessions": (CONSOLE_ACCESS, "test_oldest_session_ends_over_the_limit"),
    "console_sessions_of_user": (CONSOLE_ACCESS, "test_many_sessions_of_a_user_end_none_of_others"),
    "console_waiting_requests": (CONSOLE_HTTP, "test_requests_of_all_clients_are_bounded"),
    "descriptors": (PORTS, "test_ports_refuse_peers_instead_of_taking_the_descriptors_of_files"),
    "done_claims": (CLAIMS, "test_claims_done_early_take_no_memory"),
    "early_acks": (REVIVE, "test_oldest_acks_over_the_limit_arrive_through_the_revive_topic"),
    "failed_addresses": (SIGNATURES, "test_addresses_with_failures_are_bounded"),
    "failed_logins": (LOGINS, "test_full_table_forgets_no_repeated_failures"),
    "forwarded_bytes": (FORWARDING, "test_requests_that_wait_for_a_leader_are_bounded"),
    "gateway_groups": (GATEWAY, "test_settings_of_the_group_fetched_first_are_dropped"),
    "gateway_renewals": (GATEWAY, "test_oldest_renewal_ends_over_the_limit"),
    "gateway_routes": (GATEWAY, "test_route_fetched_first_is_dropped_and_a_fetched_again_one_kept"),
    "gateway_settings_bytes": (GATEWAY_CLIENTS, "test_settings_that_need_too_much_memory_are_refused"),
    "gateway_signatures": (GATEWAY, "test_signature_checked_first_is_forgotten_over_the_limit"),
    "groups": (TABLES, "test_topics_and_groups_above_the_limits_are_refused"),
    "ha_connections": (HA, "test_slaves_over_the_limit_are_refused"),
    "held_pulls": (HELD, "test_one_request_too_many_is_refused_with_the_limit"),
    "kv_entries": (TABLES, "test_nameserver_bounds_brokers_topics_and_kv_config"),
    "late_pulls": (LATE, "test_pulls_over_the_waiting_limit_are_refused"),
    "memberships": (TABLES, "test_members_of_one_connection_are_bounded"),
    "metrics_connections": (METRICS, "test_silent_connections_give_their_place_to_requests"),
    "metrics_pages": (METRICS, "test_page_that_is_not_read_gives_its_place_to_others"),
    "nameserver_brokers": (TABLES, "test_nameserver_bounds_brokers_topics_and_kv_config"),
    "nameserver_topics": (TABLES, "test_nameserver_bounds_brokers_topics_and_kv_config"),
    "pending_check_points": (REVIVE, "test_stored_claims_over_the_limit_are_read_when_others_are_done"),
    "popped_messages": (POPS, "test_pops_wait_while_too_many_messages_are_in_flight"),
    "popping_groups": (POPPING_GROUPS, "test_oldest_popping_group_is_forgotten_over_the_limit"),
    "queue_locks": (TABLES, "test_claims_commits_and_further_locks_need_existing_queues"),
    "request_bytes": (GATEWAY_MEMORY, "test_good_calls_succeed_while_others_fill_the_memory"),
    "requests_without_reply": (REPLIES, "test_requests_of_a_user_are_bounded"),
    "subscription_characters": (CLIENTS, "test_subscriptions_of_all_groups_are_bounded"),
    "topics": (TABLES, "test_topics_and_groups_above_the_limits_are_refused"),
}


def declared() -> Iterator[Bound]:
    for folder in ("actors", "cluster"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if " = Bound(" in path.read_text():
                name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
                module = importlib.import_module(name)
                yield from (each for each in vars(module).values() if isinstance(each, Bound))


BOUNDS = {each.name: each for each in declared()}


async def pages_of_processes(root: Path) -> str:
    """Return the pages of metrics of one process of each kind."""
    clock, nameservers = SystemClock(), ["127.0.0.1:9"]
    gateway = GatewayService(GatewaySettings(nameservers=nameservers, listen_port=0), clock)
    nameserver = build_nameserver(NameserverSettings(listen_port=0, max_connections_per_address=9), clock)
    console = ConsoleService(ConsoleSettings(nameservers=nameservers), clock)
    master = BrokerService(master_of(root / "master"), clock)
    await master.start()
    async with Group(root / "group") as group:
        brokers = [each.graph.metrics for each in (master, group.peers[0].broker)]
        endpoints = (gateway.metrics, nameserver.metrics, console.metrics, *brokers)
        text = "".join("".join(page(each.figures, {}, 10_000)) for each in endpoints)
    await master.stop()
    await console.stop()
    return text


def test_every_bound_has_a_test_that_reaches_it() -> None:
    assert BOUNDS.keys() == TESTS.keys()
    for file, test in TESTS.values():
        tree = ast.parse((ROOT / file).read_text())
        assert test in {getattr(node, "name", "") for node in ast.walk(tree)}, (file, test)


def test_every_bound_is_on_the_page_of_metrics_with_its_limit(tmp_path: Path) -> None:
    text = asyncio.run(pages_of_processes(tmp_path))
    for name, bound in BOUNDS.items():
        assert f'raymq_bound_used{{bound="{name}"}} ' in text
        limit = f'raymq_bound_limit{{bound="{name}",at_limit="{bound.at_limit}"}} {bound.limit}\n'
        assert (limit in text) == bool(bound.limit), name
