"""A store that is made says nothing of a recovery; one that is opened again says what it found."""

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
    [told] = [entry for entry in logs if entry["event"] == RECOVERED]
    assert (told["closed_cleanly"], told["dispatch_reasons"], end) == (True, [], 1)
