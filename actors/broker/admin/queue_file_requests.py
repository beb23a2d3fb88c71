"""The request of a re-index job to replace a consume queue file."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from actors.transport.request import OnSlave, RequestContext, RequestRow
from actors.wire.admin_headers import ReplaceQueueFileHeader
from actors.wire.codes import RayMQRequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.remoting_errors import Refused
from actors.wire.targets import Action, on_cluster
from store.disk.files import explain
from store.message_store import MessageStore
from store.store_errors import StoreError
from store.tools.reindex.sealed import SealedFile, verify_sealed
from store.tools.reindex.store_files import files_of


class QueueFileRequests:
    """Request handler for REPLACE_QUEUE_FILE."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store

    def rows(self) -> Iterable[RequestRow]:
        """Return the entries of the request table that this class handles."""
        code, update = RayMQRequestCode.REPLACE_QUEUE_FILE, on_cluster(Action.UPDATE)
        return (RequestRow(code, self.replace, ReplaceQueueFileHeader, update, on_slave=OnSlave.SERVED),)

    def replace(self, context: RequestContext) -> None:
        """Handle REPLACE_QUEUE_FILE: verify the new file in another thread, and put it in place."""
        header: ReplaceQueueFileHeader = context.header
        context.spawn(self._replace(SealedFile(header.topic, header.queue_id, header.offset, header.crc)))

    async def _replace(self, new: SealedFile) -> RemotingCommand:
        store = self._store
        try:
            # First, because the names in the path are those of the request.
            store.queue_files.require_full(new.topic, new.queue_id, new.offset)
            files = files_of(store.root, store.identity)
            end = store.positions.dispatched
            await asyncio.to_thread(verify_sealed, files, new, end)
            path = new.path(files.new_queues)
            store.queue_files.replace(new.topic, new.queue_id, new.offset, path, new.crc)
        except StoreError as error:
            raise Refused(ResponseCode.INVALID_PARAMETER, str(error)) from error
        except OSError as error:
            reason = f"{error.filename}: {explain(error)}"
            raise Refused(ResponseCode.SYSTEM_ERROR, f"the file was not replaced: {reason}") from error
        return RemotingCommand.response()
