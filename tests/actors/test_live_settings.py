"""Every setting marked LIVE is read each time it is used, and has a test that changes it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

from actors.broker.broker_settings import BrokerSettings
from actors.nameserver.nameserver_settings import NameserverSettings
from actors.rebalancer.rebalancer_settings import RebalancerSettings
from store.common.live_settings import live_names
from store.store_settings import StoreSettings
from tests.sources import parsed

ROOT = Path(__file__).parents[2]
BROKER = "tests/actors/broker/test_live_settings.py"
EXPIRY = "tests/store/upkeep/test_retention.py"
RETENTION = "tests/store/upkeep/test_live_retention.py"
CHECKPOINT = "test_changed_checkpoint_interval_applies_after_the_next_checkpoint"
STORE = "tests/store/test_live_store_settings.py"
NAMESERVER = "tests/actors/nameserver/test_service.py"
REBALANCER = "tests/actors/rebalancer/test_service.py"
ADMISSION_CHANGE = "test_changed_rate_and_pending_limits_apply_to_the_next_request"
PRIORITIES = "tests/actors/broker/features/pop/test_priorities.py"
LITE = "tests/actors/broker/features/lite/test_lite_requests.py"
EVERY = "test_a_periodic_action_is_called_again_after_it_raised"

SHOWN: dict[type[BaseModel], dict[str, tuple[str, str]]] = {
    BrokerSettings: {
        "auto_create_topics": (BROKER, "test_auto_create_settings_apply_to_the_next_topic_and_group"),
        "auto_create_groups": (BROKER, "test_auto_create_settings_apply_to_the_next_topic_and_group"),
        "default_topic_queues": (BROKER, "test_auto_create_settings_apply_to_the_next_topic_and_group"),
        "max_topics": (BROKER, "test_changed_size_limits_apply_to_the_next_request"),
        "max_groups": (BROKER, "test_changed_size_limits_apply_to_the_next_request"),
        "pull_max_messages": (BROKER, "test_changed_size_limits_apply_to_the_next_request"),
        "pull_max_bytes": (BROKER, "test_changed_size_limits_apply_to_the_next_request"),
        "long_polling": (BROKER, "test_changed_pull_waits_apply_to_the_next_pull"),
        "max_hold_ms": (BROKER, "test_changed_pull_waits_apply_to_the_next_pull"),
        "consume_new_topics_from_start": (
            BROKER,
            "test_changed_start_of_new_topics_applies_to_the_next_query",
        ),
        "max_sends_per_s": (BROKER, ADMISSION_CHANGE),
        "max_pending_requests": (BROKER, ADMISSION_CHANGE),
        "send_queue_capacity": (BROKER, "test_changed_limits_of_busy_brokers_apply_to_the_next_send"),
        "os_page_cache_busy_ms": (BROKER, "test_changed_limits_of_busy_brokers_apply_to_the_next_send"),
        "transaction_timeout_ms": (BROKER, "test_changed_transaction_limits_apply_to_the_next_check"),
        "transaction_check_max": (BROKER, "test_changed_transaction_limits_apply_to_the_next_check"),
        "permission": (
            "tests/actors/broker/test_broker_permission.py",
            "test_broker_permission_changes_routes_and_refuses_no_send",
        ),
        "timer_max_delay_s": (
            "tests/actors/broker/features/timer/test_timer_delivery.py",
            "test_delay_longer_than_the_wheel_is_possible",
        ),
        "max_unread_bytes": (
            "tests/actors/broker/test_hostile_peers.py",
            "test_limit_of_unread_bytes_follows_the_live_setting",
        ),
        "refuse_mixed_request_modes": (
            "tests/actors/broker/features/pop/test_mixed_modes.py",
            "test_pull_of_a_popping_group_is_reported_and_refused",
        ),
        "pop_dead_letters": (
            "tests/actors/broker/features/pop/test_pops.py",
            "test_dead_letter_after_the_groups_limit",
        ),
        "pop_from_retry_probability_for_priority": (PRIORITIES, "test_changed_order_applies_to_the_next_pop"),
        "priority_order_asc": (PRIORITIES, "test_changed_order_applies_to_the_next_pop"),
        "retention_waits_for": (
            "tests/actors/broker/features/test_kept_log.py",
            "test_hold_ends_with_the_setting_the_topic_or_a_reset",
        ),
        "slave_read_enable": (
            "tests/actors/broker/replication/ha/test_slave_requests.py",
            "test_slave_serves_pulls_only_while_slave_read_enable_is_true",
        ),
        "ha_max_bytes_per_s": (
            "tests/actors/broker/replication/ha/test_ha_stream.py",
            "test_rate_of_all_slaves_follows_the_live_setting",
        ),
        "access_message_in_memory_max_ratio": (
            "tests/actors/broker/core/reading/test_replica_choice.py",
            "test_consumers_far_behind_are_sent_to_the_groups_slave_and_back",
        ),
        **dict.fromkeys(
            (
                "lite_topic_quota_enabled",
                "max_lite_topics",
                "max_lite_subscriptions",
                "lite_subscription_timeout_ms",
                "min_lite_ttl_ms",
            ),
            (LITE, "test_settings_of_lite_topics_have_their_effect_at_once"),
        ),
        "lite_ttl_check_interval_ms": ("tests/actors/test_supervisor.py", EVERY),
        "persist_offsets_interval_ms": ("tests/actors/test_supervisor.py", EVERY),
    },
    StoreSettings: {
        "max_message_bytes": (BROKER, "test_changed_size_limits_apply_to_the_next_request"),
        "checkpoint_interval_ms": (STORE, CHECKPOINT),
        "preallocate": (STORE, "test_changed_preallocation_applies_to_the_next_file"),
        "warm_mapped_file": (STORE, "test_changed_preallocation_applies_to_the_next_file"),
        "delete_when_h": (
            "tests/store/upkeep/test_retention.py",
            "test_expired_files_are_deleted_at_the_configured_hour",
        ),
        "clean_interval_ms": (RETENTION, "test_changed_intervals_apply_after_the_next_round"),
        "delete_files_interval_ms": (RETENTION, "test_changed_intervals_apply_after_the_next_round"),
        "file_reserved_time_h": (RETENTION, "test_changed_limits_of_retention_apply_to_the_next_round"),
        "delete_file_batch_max": (RETENTION, "test_changed_limits_of_retention_apply_to_the_next_round"),
        "disk_max_used_percent": (RETENTION, "test_changed_disk_levels_apply_to_the_next_round"),
        "disk_force_clean_percent": (RETENTION, "test_changed_disk_levels_apply_to_the_next_round"),
        "disk_refuse_writes_percent": (RETENTION, "test_changed_disk_levels_apply_to_the_next_round"),
        "force_clean_enabled": (RETENTION, "test_changed_disk_levels_apply_to_the_next_round"),
        "file_release_timeout_ms": (RETENTION, "test_changed_release_timeout_applies_to_files_in_use"),
    },
    NameserverSettings: {
        "order_message_enable": (NAMESERVER, "test_kv_config_survives_a_restart"),
        "broker_expiry_ms": (NAMESERVER, "test_changed_broker_expiry_applies_to_the_next_registration"),
        "scan_interval_ms": ("tests/actors/test_supervisor.py", EVERY),
    },
    RebalancerSettings: {
        "lease_ms": (REBALANCER, "test_changed_leases_apply_to_the_next_request"),
        "min_lease_ms": (REBALANCER, "test_changed_leases_apply_to_the_next_request"),
        "max_lease_ms": (REBALANCER, "test_changed_leases_apply_to_the_next_request"),
        "allow_subscription_change": (REBALANCER, "test_changed_leases_apply_to_the_next_request"),
        "heartbeat_expiry_ms": (REBALANCER, "test_changed_heartbeat_expiry_applies_to_known_members"),
        "lease_check_interval_ms": ("tests/actors/test_supervisor.py", EVERY),
        "route_refresh_interval_ms": ("tests/actors/test_supervisor.py", EVERY),
    },
}
"""For each live setting the test that changes it while the service runs."""
READ_WHEN_BUILT = {
    # The time of the first round; each round reads it again.
    ("store/upkeep/retention.py", "clean_interval_ms"),
    # The nameserver's setting of this name, which is not live.
    ("actors/nameserver/service.py", "max_topics"),
}


@pytest.mark.parametrize("model", SHOWN)
def test_every_live_setting_has_a_test_that_changes_it(model: type[BaseModel]) -> None:
    assert SHOWN[model].keys() == live_names(model)
    for name, (path, test) in SHOWN[model].items():
        module = parsed(ROOT / path)
        functions = {each.name: each for each in module.body if isinstance(each, ast.FunctionDef)}
        assert test in functions, (name, path)
        keys = {name, *getattr(model.model_fields[name].validation_alias, "choices", ())}
        assert test == EVERY or any(str(key) in ast.unparse(functions[test]) for key in keys), (name, test)


def test_no_live_setting_is_read_when_an_object_is_built() -> None:
    """A value that a constructor or a `build` function keeps would not change later."""
    names = frozenset[str]().union(*map(live_names, SHOWN))
    found = {
        (str(path.relative_to(ROOT)), each.attr)
        for package in ("actors", "store")
        for path in (ROOT / package).rglob("*.py")
        for function in ast.walk(parsed(path))
        if isinstance(function, ast.FunctionDef) and _builds(function)
        for each in _reads(function)
        if each.attr in names and _is_of_settings(each)
    }
    assert found == READ_WHEN_BUILT


def _builds(function: ast.FunctionDef) -> bool:
    name = function.name.lstrip("_")
    return name in {"init__", "post_init__", "open"} or name.startswith("build")


def _reads(node: ast.AST) -> Iterator[ast.Attribute]:
    """Yield the attributes that are read in a function itself, not later in a lambda or an inner function."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Lambda | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(child, ast.Attribute):
            yield child
        yield from _reads(child)


def _is_of_settings(read: ast.Attribute) -> bool:
    return any(part in ast.unparse(read.value) for part in ("settings", "store"))
