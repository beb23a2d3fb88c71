"""The admin client with a blocking API: topics, routes, groups, offsets and brokers."""

from __future__ import annotations

from cluster.client.admin import aio_admin as aio
from cluster.client.config import ClientConfig, Nameservers
from cluster.client.transport.faces import BlockingFace, blocking
from store.common.clock import Clock


class Admin(BlockingFace[aio.Admin]):
    """Admin client: inspects and changes topics, consumer groups, offsets and brokers of a cluster.

    with Admin("127.0.0.1:9876") as admin:
        admin.create_topic("orders", queues=8)
        print(admin.end_offsets("orders"))
    """

    def __init__(
        self,
        nameservers: Nameservers | None = None,
        *,
        config: ClientConfig | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(aio.Admin(nameservers, config=config, clock=clock))

    close = blocking(aio.Admin.close)

    # ---- topics, offsets and messages ----------------------------------------------------------------------

    create_topic = blocking(aio.Admin.create_topic)
    delete_topic = blocking(aio.Admin.delete_topic)
    topics = blocking(aio.Admin.topics)
    route = blocking(aio.Admin.route)
    cluster_info = blocking(aio.Admin.cluster_info)
    splits = blocking(aio.Admin.splits)
    beginning_offsets = blocking(aio.Admin.beginning_offsets)
    end_offsets = blocking(aio.Admin.end_offsets)
    offsets_at = blocking(aio.Admin.offsets_at)
    offsets_for_times = blocking(aio.Admin.offsets_for_times)
    committed_offsets = blocking(aio.Admin.committed_offsets)
    commit_offsets = blocking(aio.Admin.commit_offsets)
    group_members = blocking(aio.Admin.group_members)
    message_by_id = blocking(aio.Admin.message_by_id)
    message_trace = blocking(aio.Admin.message_trace)
    messages_by_key = blocking(aio.Admin.messages_by_key)

    # ---- consumer groups and producers ---------------------------------------------------------------------

    groups = blocking(aio.Admin.groups)
    put_group = blocking(aio.Admin.put_group)
    delete_group = blocking(aio.Admin.delete_group)
    group_stats = blocking(aio.Admin.group_stats)
    all_group_stats = blocking(aio.Admin.all_group_stats)
    group_time_spans = blocking(aio.Admin.group_time_spans)
    queue_generations = blocking(aio.Admin.queue_generations)
    group_connection = blocking(aio.Admin.group_connection)
    producers = blocking(aio.Admin.producers)
    all_producers = blocking(aio.Admin.all_producers)
    groups_of_topic = blocking(aio.Admin.groups_of_topic)
    topics_of_group = blocking(aio.Admin.topics_of_group)
    reset_offsets = blocking(aio.Admin.reset_offsets)
    reset_offset = blocking(aio.Admin.reset_offset)
    clone_offsets = blocking(aio.Admin.clone_offsets)
    running_info = blocking(aio.Admin.running_info)

    # ---- lite topics ---------------------------------------------------------------------------------------

    lite_topics = blocking(aio.Admin.lite_topics)
    lite_topic = blocking(aio.Admin.lite_topic)
    lite_client = blocking(aio.Admin.lite_client)
    lite_group = blocking(aio.Admin.lite_group)
    dispatch_lite = blocking(aio.Admin.dispatch_lite)

    # ---- dead letters --------------------------------------------------------------------------------------

    dead_letter_counts = blocking(aio.Admin.dead_letter_counts)
    dead_letter_count = blocking(aio.Admin.dead_letter_count)
    dead_letters = blocking(aio.Admin.dead_letters)
    dead_letter_page = blocking(aio.Admin.dead_letter_page)
    resend_dead_letters = blocking(aio.Admin.resend_dead_letters)
    purge_dead_letters = blocking(aio.Admin.purge_dead_letters)

    # ---- users and policies --------------------------------------------------------------------------------

    users = blocking(aio.Admin.users)
    put_user = blocking(aio.Admin.put_user)
    delete_user = blocking(aio.Admin.delete_user)
    acls = blocking(aio.Admin.acls)
    put_policies = blocking(aio.Admin.put_policies)
    permit = blocking(aio.Admin.permit)
    delete_policies = blocking(aio.Admin.delete_policies)

    # ---- brokers, and requests to a single broker ----------------------------------------------------------

    brokers = blocking(aio.Admin.brokers)
    broker_runtime = blocking(aio.Admin.broker_runtime)
    check_sees_everything = blocking(aio.Admin.check_sees_everything)
    check_proof = blocking(aio.Admin.check_proof)
    broker_config = blocking(aio.Admin.broker_config)
    change_broker_config = blocking(aio.Admin.change_broker_config)
    clean_broker = blocking(aio.Admin.clean_broker)
    restart_broker = blocking(aio.Admin.restart_broker)
    transfer_leadership = blocking(aio.Admin.transfer_leadership)
    drain_broker = blocking(aio.Admin.drain_broker)
    broker_at = blocking(aio.Admin.broker_at)
    raft_members = blocking(aio.Admin.raft_members)
    change_raft_members = blocking(aio.Admin.change_raft_members)
    replace_queue_file = blocking(aio.Admin.replace_queue_file)
    timer_counts = blocking(aio.Admin.timer_counts)
    broker_stats = blocking(aio.Admin.broker_stats)
    set_writable = blocking(aio.Admin.set_writable)
    system_topics = blocking(aio.Admin.system_topics)
    broker_topics = blocking(aio.Admin.broker_topics)
    topic_stats = blocking(aio.Admin.topic_stats)
    topic_counters = blocking(aio.Admin.topic_counters)
    topic_configs = blocking(aio.Admin.topic_configs)
    set_topic_perm = blocking(aio.Admin.set_topic_perm)
    messages_at = blocking(aio.Admin.messages_at)
    units = blocking(aio.Admin.units)
