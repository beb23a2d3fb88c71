"""TopicConfig: the settings of one topic, in RocketMQ's files and bodies."""

import msgspec

from store.message.json_fields import ConfigObject, Name


class TopicConfig(ConfigObject, frozen=True):
    """The settings of a topic, with the defaults of RocketMQ's TopicConfig.

    `perm` is the sum of 4 (read), 2 (write) and 1 (inherit).
    """

    topic_name: Name
    read_queue_nums: int = 16
    write_queue_nums: int = 16
    perm: int = 6
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    order: bool = False
    attributes: dict[str, str] = msgspec.field(default_factory=dict)
