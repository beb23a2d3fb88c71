"""Recovery is logged for a store that is opened again, not for a new one."""

import structlog

RECOVERED = "store_recovered"


def test_recovery_is_logged_only_for_an_existing_store(stores, draft, drain):
    with structlog.testing.capture_logs() as logs:
        store = stores.open()
        store.append(draft(b"one"))
        drain(store)
        store.close()
        assert [entry for entry in logs if entry["event"] == RECOVERED] == []
        end = stores.open().max_offset("Topic", 0)
    [recovered] = [entry for entry in logs if entry["event"] == RECOVERED]
    assert (recovered["closed_cleanly"], recovered["dispatch_reasons"], end) == (True, [], 1)
