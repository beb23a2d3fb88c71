"""A store that is made says nothing of a recovery; one that is opened again says what it found."""

import structlog

RECOVERED = "store_recovered"


def test_only_a_store_that_was_there_tells_of_its_recovery(stores, draft, drain):
    with structlog.testing.capture_logs() as logs:
        store = stores.open()
        store.append(draft(b"one"))
        drain(store)
        store.close()
        assert [entry for entry in logs if entry["event"] == RECOVERED] == []
        end = stores.open().max_offset("Topic", 0)
    [told] = [entry for entry in logs if entry["event"] == RECOVERED]
    assert (told["closed_cleanly"], told["dispatch_reasons"], end) == (True, [], 1)
