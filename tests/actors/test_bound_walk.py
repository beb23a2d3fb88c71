"""Every declared bound is shown by the processes that own it, and has a test that reaches it."""

from __future__ import annotations

import ast
import asyncio
import importlib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from actors.bounds import Bound
from actors.broker.service import BrokerService
from actors.gateway.gateway_settings import GatewaySettings
from actors.gateway.service import GatewayService
from actors.host.metrics.page import page
from actors.nameserver.nameserver_settings import NameserverSettings
from actors.nameserver.service import build_nameserver
from actors.rebalancer.rebalancer_settings import RebalancerSettings
from actors.rebalancer.service import build_rebalancer
from cluster.autoscale.autoscaler_settings import AutoscalerSettings
from cluster.autoscale.controller import Controller
from cluster.autoscale.service import AutoscalerService
from cluster.console.console_settings import ConsoleSettings
from cluster.console.service import ConsoleService
from store.common.clock import SystemClock
from tests.actors.broker.brokers import settings_of
from tests.actors.broker.core.auth.access_peers import inner_file
from tests.actors.broker.replication.ha.slaves import master_of
from tests.actors.broker.replication.raft.groups import Group
from tests.cluster.autoscale.test_service import RULES
from tests.sources import parsed

ROOT = Path(__file__).parents[2]
FILTERS = "tests/actors/broker/core/group/test_subscriptions.py"
USERS = "tests/actors/access/test_users.py"
SLAVES = "tests/actors/broker/replication/ha/test_slave_stream.py"
SAMPLER = "tests/cluster/console/test_sampler.py"
SCHEDULER = "tests/actors/transport/test_scheduler.py"
GRPC = "tests/actors/gateway/test_grpc.py"
ONLINE = "tests/actors/broker/core/group/test_groups_online.py"
LITE = "tests/actors/broker/features/lite/test_lite_subscriptions.py"
PLAIN = "tests/actors/broker/core/sending/test_plain_sends.py"
ENDS = "tests/actors/broker/core/reading/test_queue_ends.py"
LATE = "tests/actors/broker/core/compat/test_late_subscriptions.py"
LOGINS = "tests/actors/access/test_login_failures.py"
GATEWAY = "tests/actors/gateway/test_gateway_bounds.py"
GATEWAY_CLIENTS = "tests/actors/gateway/test_clients.py"
GATEWAY_MEMORY = "tests/actors/gateway/test_grpc_memory.py"
HA = "tests/actors/broker/replication/ha/test_ha_fuzz.py"
METRICS = "tests/actors/host/metrics/test_endpoint.py"
PORTS = "tests/actors/transport/test_ports.py"
CONSOLE = "tests/cluster/console/test_service.py"
CONSOLE_HTTP = "tests/cluster/console/test_http.py"
CONSOLE_ACCESS = "tests/cluster/console/test_access.py"
CONSOLE_API = "tests/cluster/console/test_api.py"
REBALANCER_SERVICE = "tests/actors/rebalancer/test_service.py"
STATS = "tests/actors/broker/core/test_stats.py"
OFFSETS = "tests/actors/broker/core/metadata/test_consumer_offsets.py"
TABLES = "tests/actors/broker/core/test_table_limits.py"
SIGNATURES = "tests/actors/broker/core/auth/test_signatures.py"
REPLIES = "tests/actors/broker/core/auth/test_replies.py"
HELD = "tests/actors/broker/core/loop/test_wait_registry.py"
CLAIMS = "tests/actors/broker/features/pop/test_claims.py"
REVIVE = "tests/actors/broker/features/pop/test_revive_bounds.py"
POPS = "tests/actors/broker/features/pop/test_pops.py"
POPPING_GROUPS = "tests/actors/broker/core/group/test_popping_groups.py"
CLIENTS = "tests/actors/broker/core/group/test_clients.py"
FORWARDING = "tests/actors/broker/replication/raft/test_forwarding.py"

TESTS = {
    "connections": (PORTS, "test_new_peer_is_refused_while_all_others_are_served_or_have_just_asked"),
    "connections_per_address": (TABLES, "test_connections_of_one_address_are_bounded"),
    "consumed_lite_topics": (TABLES, "test_consumed_lite_topics_have_a_bound_of_their_own"),
    "consumed_topics": (TABLES, "test_topics_that_all_groups_consume_are_bounded"),
    "console_connections": (CONSOLE, "test_connections_without_a_request_give_their_place_to_others"),
    "console_cursors": (CONSOLE_API, "test_oldest_search_cannot_be_continued_over_the_limit"),
    "console_curves": (SAMPLER, "test_number_of_histories_is_bounded"),
    "console_sessions": (CONSOLE_ACCESS, "test_oldest_session_ends_over_the_limit"),
    "console_sessions_of_user": (CONSOLE_ACCESS, "test_many_sessions_of_a_user_end_none_of_others"),
    "console_waiting_requests": (CONSOLE_HTTP, "test_requests_of_all_clients_are_bounded"),
    "costly_requests": (SCHEDULER, "test_waiting_costly_requests_of_one_peer_are_bounded"),
    "descriptors": (PORTS, "test_ports_refuse_peers_instead_of_taking_the_descriptors_of_files"),
    "done_claims": (CLAIMS, "test_claims_done_early_take_no_memory"),
    "early_acks": (REVIVE, "test_oldest_acks_over_the_limit_arrive_through_the_revive_topic"),
    "failed_addresses": (SIGNATURES, "test_addresses_with_failures_are_bounded"),
    "failed_logins": (LOGINS, "test_full_table_forgets_no_repeated_failures"),
    "filter_bytes": (FILTERS, "test_filters_in_use_are_compiled_once_and_bounded_by_bytes"),
    "forwarded_bytes": (FORWARDING, "test_requests_that_wait_for_a_leader_are_bounded"),
    "gateway_groups": (GATEWAY, "test_settings_of_the_group_fetched_first_are_dropped"),
    "gateway_lite_subscriptions": (
        "tests/actors/gateway/test_gateway_lite.py",
        "test_copies_of_subscriptions_are_bounded",
    ),
    "gateway_renewals": (GATEWAY, "test_oldest_renewal_ends_over_the_limit"),
    "gateway_routes": (GATEWAY, "test_route_fetched_first_is_dropped_and_a_fetched_again_one_kept"),
    "gateway_settings_bytes": (GATEWAY_CLIENTS, "test_settings_that_need_too_much_memory_are_refused"),
    "gateway_signatures": (GATEWAY, "test_signature_checked_first_is_forgotten_over_the_limit"),
    "gateway_streams": (GRPC, "test_calls_over_the_limit_of_a_connection_wait_for_others"),
    "group_counters": (STATS, "test_oldest_counter_is_dropped_over_the_limit"),
    "groups": (TABLES, "test_topics_and_groups_above_the_limits_are_refused"),
    "ha_connections": (HA, "test_slaves_over_the_limit_are_refused"),
    "ha_reports_ahead": (SLAVES, "test_flood_of_reports_is_refused"),
    "held_pulls": (HELD, "test_one_request_too_many_is_refused_with_the_limit"),
    "kv_entries": (TABLES, "test_nameserver_bounds_brokers_topics_and_kv_config"),
    "late_pulls": (LATE, "test_pulls_over_the_waiting_limit_are_refused"),
    "lite_clients": (LITE, "test_lite_subscriptions_have_quotas"),
    "lite_subscriptions": (LITE, "test_lite_subscriptions_have_quotas"),
    "memberships": (TABLES, "test_members_of_one_connection_are_bounded"),
    "owned_queues": (REBALANCER_SERVICE, "test_new_members_are_refused_over_a_limit"),
    "metrics_connections": (METRICS, "test_silent_connections_give_their_place_to_requests"),
    "metrics_pages": (METRICS, "test_page_that_is_not_read_gives_its_place_to_others"),
    "metrics_series": (METRICS, "test_series_over_the_limit_are_dropped_and_the_bounds_are_shown"),
    "nameserver_brokers": (TABLES, "test_nameserver_bounds_brokers_topics_and_kv_config"),
    "nameserver_topics": (TABLES, "test_nameserver_bounds_brokers_topics_and_kv_config"),
    "pending_check_points": (REVIVE, "test_stored_claims_over_the_limit_are_read_when_others_are_done"),
    "plain_send_queues": (PLAIN, "test_compiled_path_forgets_all_topics_over_its_limits"),
    "plain_send_topics": (PLAIN, "test_compiled_path_forgets_all_topics_over_its_limits"),
    "popped_messages": (POPS, "test_pops_wait_while_too_many_messages_are_in_flight"),
    "popping_groups": (POPPING_GROUPS, "test_oldest_popping_group_is_forgotten_over_the_limit"),
    "pulled_queues": (OFFSETS, "test_queue_pulled_first_is_forgotten_over_the_limit"),
    "queue_end_responses": (ENDS, "test_response_made_first_is_dropped_over_the_limit"),
    "queue_locks": (TABLES, "test_claims_commits_and_further_locks_need_existing_queues"),
    "rebalancer_groups": (
        REBALANCER_SERVICE,
        "test_new_members_are_refused_over_a_limit",
    ),
    "rebalancer_members": (
        REBALANCER_SERVICE,
        "test_new_members_are_refused_over_a_limit",
    ),
    "refused_subscriptions": (LATE, "test_oldest_refused_subscription_is_forgotten_over_the_limit"),
    "request_bytes": (GATEWAY_MEMORY, "test_good_calls_succeed_while_others_fill_the_memory"),
    "requests_without_reply": (REPLIES, "test_requests_of_a_user_are_bounded"),
    "rules_of_user": (USERS, "test_rules_of_one_user_are_bounded"),
    "skipped_groups": (ONLINE, "test_group_skipped_first_is_logged_again_over_the_limit"),
    "subscription_characters": (CLIENTS, "test_subscriptions_of_all_groups_are_bounded"),
    "subscription_differences": (CLIENTS, "test_oldest_logged_difference_is_forgotten_over_the_limit"),
    "topics": (TABLES, "test_topics_and_groups_above_the_limits_are_refused"),
    "users": (USERS, "test_users_are_bounded"),
}


BROKER, NAMESERVER, REBALANCER, GATEWAY = "broker", "nameserver", "rebalancer", "gateway"
CONSOLE_PROCESS, AUTOSCALER = "console", "autoscaler"
SERVERS = {BROKER, NAMESERVER, REBALANCER}
OWNERS = {
    "actors/access/login_failures.py": {CONSOLE_PROCESS},
    "actors/access/signatures.py": {*SERVERS, GATEWAY},
    "actors/access/users.py": {BROKER, NAMESERVER},
    "actors/broker/": {BROKER},
    "actors/gateway/": {GATEWAY},
    "actors/host/metrics/": {*SERVERS, GATEWAY, CONSOLE_PROCESS, AUTOSCALER},
    "actors/memory_account.py": {*SERVERS, GATEWAY},
    "actors/nameserver/": {NAMESERVER},
    "actors/ports.py": {*SERVERS, GATEWAY, CONSOLE_PROCESS, AUTOSCALER},
    "actors/rebalancer/": {REBALANCER},
    "actors/wire/": SERVERS,
    "actors/transport/": SERVERS,
    "cluster/console/": {CONSOLE_PROCESS},
}
"""The kinds of processes that have what the bounds of a file limit."""
UNKNOWN = {"metrics_series", "console_curves"}
"""Not known before the first page or sample."""


def declared() -> Iterator[tuple[str, Bound]]:
    for folder in ("actors", "cluster", "store"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if " = Bound(" in path.read_text():
                file = path.relative_to(ROOT)
                module = importlib.import_module(".".join(file.with_suffix("").parts))
                for each in vars(module).values():
                    if isinstance(each, Bound):
                        yield str(file), each


BOUNDS = {each.name: each for _, each in declared()}
OWNED = {
    (bound.name, kind)
    for file, bound in declared()
    for place, kinds in OWNERS.items()
    if file.startswith(place)
    for kind in kinds
}


async def pages_of_processes(root: Path) -> Mapping[str, str]:
    """Return the pages of metrics of processes with and without access control, by kind."""
    clock, nameservers = SystemClock(), ["127.0.0.1:9"]
    access: dict[str, Any] = {"authentication_enabled": True, "inner_credentials_file": inner_file(root)}
    gateway = GatewayService(GatewaySettings(nameservers=nameservers, listen_port=0, **access), clock)
    nameserver = build_nameserver(
        NameserverSettings(
            listen_port=0, max_connections_per_address=9, access_file=root / "users.json", **access
        ),
        clock,
    )
    rebalancer = build_rebalancer(
        RebalancerSettings(nameservers=nameservers, listen_port=0, data_dir=root, **access), clock
    )
    autoscaler = AutoscalerService(_no_controller, AutoscalerSettings(rules=RULES), root, lambda _: None)
    console = ConsoleService(ConsoleSettings(nameservers=nameservers), clock)
    master = BrokerService(master_of(root / "master"), clock)
    secured = BrokerService(settings_of(root / "secured", **access), clock)
    await asyncio.gather(master.start(), secured.start())
    async with Group(root / "group") as group:
        brokers = [each.graph.metrics for each in (master, secured, group.peers[0].broker)]
        pages: defaultdict[str, str] = defaultdict(str)
        for kind, endpoint in (
            *((BROKER, each) for each in brokers),
            (NAMESERVER, nameserver.metrics),
            (REBALANCER, rebalancer.metrics),
            (GATEWAY, gateway.metrics),
            (CONSOLE_PROCESS, console.metrics),
            (AUTOSCALER, autoscaler.metrics),
        ):
            bounds = [each for each in endpoint.figures if each.name in {"bound_used", "bound_limit"}]
            pages[kind] += "".join(page(bounds, {}, 10_000))
    await asyncio.gather(master.stop(), secured.stop(), console.stop())
    return pages


def _no_controller() -> Controller:
    raise AssertionError


def test_every_bound_has_a_test_that_reaches_it() -> None:
    assert BOUNDS.keys() == TESTS.keys()
    for file, test in TESTS.values():
        tree = parsed(ROOT / file)
        assert test in {getattr(node, "name", "") for node in ast.walk(tree)}, (file, test)


def test_every_bound_is_shown_by_the_processes_that_own_it_with_its_limit(tmp_path: Path) -> None:
    assert {name for name, _ in OWNED} == BOUNDS.keys()
    pages = asyncio.run(pages_of_processes(tmp_path))
    for name, kind in sorted(OWNED):
        limit = f'raymq_bound_limit{{bound="{name}",at_limit="{BOUNDS[name].at_limit}"}} '
        assert limit in pages[kind] or not BOUNDS[name].limit, (name, kind)
        has_use = f'raymq_bound_used{{bound="{name}"}} ' in pages[kind]
        assert has_use == (name not in UNKNOWN) or not BOUNDS[name].limit, (name, kind)
    shown = {name for name in BOUNDS if f'raymq_bound_used{{bound="{name}"}} ' in "".join(pages.values())}
    assert shown == BOUNDS.keys() - UNKNOWN
    for name, bound in BOUNDS.items():
        default = f'raymq_bound_limit{{bound="{name}",at_limit="{bound.at_limit}"}} {bound.limit}\n'
        assert any(default in each for each in pages.values()) == bool(bound.limit), name
