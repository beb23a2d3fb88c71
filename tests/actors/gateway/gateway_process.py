"""A process with a broker and a gateway: prints the gateway's address, and serves until its input ends."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from actors.host import garbage
from actors.wire.codes import RequestCode
from cluster.standalone import StandaloneCluster, StandaloneSettings
from store.common.clock import SystemClock
from store.store_settings import StoreSettings
from tests.actors.broker.brokers import Peer

TOPIC = {
    "topic": "Plain", "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6",
    "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
}  # fmt: skip


async def serve(root: Path) -> None:
    store = StoreSettings.model_validate({"flush": "async"})
    settings = StandaloneSettings(root, store=store, with_rebalancer=False, gateway_port=0, broker={})
    cluster = StandaloneCluster(settings, SystemClock())
    await cluster.start()
    peer = Peer(cluster.brokers[0])
    response = await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, TOPIC)
    assert response.code == 0, response.remark
    await peer.client.close()
    garbage.freeze()
    sys.stdout.write(f"{cluster.gateway_address}\n")
    sys.stdout.flush()
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await cluster.stop()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))
