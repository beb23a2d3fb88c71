"""Typed headers of the requests that end and check transactions."""

from actors.remoting.header import Header, Long, wire


class EndTransactionHeader(Header):
    """Header of END_TRANSACTION (37); `commit_or_rollback` has the transaction bits of a sysFlag.

    The two offsets are those of the half message: `tran_state_table_offset` in its queue, `commit_log_offset`
    in the CommitLog. Clients before 5.0 do not send the topic.
    """

    producer_group: str
    tran_state_table_offset: Long
    commit_log_offset: Long
    commit_or_rollback: Long
    from_transaction_check: bool = False
    msg_id: str = ""
    transaction_id: str = ""
    topic: str = ""


class CheckTransactionStateHeader(Header):
    """Header of CHECK_TRANSACTION_STATE (39), which a broker sends to a producer.

    The body is the record of the half message, with its own topic and queue. `msg_id` is its UNIQ_KEY.
    """

    tran_state_table_offset: Long
    commit_log_offset: Long
    msg_id: str = ""
    transaction_id: str = ""
    offset_msg_id: str = ""
    topic: str = ""
    broker_name: str = wire(name="bname", default="")
