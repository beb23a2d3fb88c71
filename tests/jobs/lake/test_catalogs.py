"""Catalogs: where tables are, how they are named, and how secrets stay secret."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.job_errors import LakeUnavailable, OptionInvalid
from jobs.lake.catalogs import LakeSettings, lake_settings, open_catalog, table_name

TOPIC_CHARACTERS = "%|_-xX0123456789abcdefABC"


@given(st.text(TOPIC_CHARACTERS, min_size=1, max_size=30))
def test_table_name_leads_back_to_its_topic(topic: str) -> None:
    name = table_name(topic)
    assert re.sub("_x([0-9a-f]{2})_", lambda found: chr(int(found[1], 16)), name) == topic
    assert not set(name) & set("%|")


def test_table_name_is_that_of_the_topic_if_catalogs_accept_it() -> None:
    assert table_name("flight-events_2") == "flight-events_2"
    assert table_name("%RETRY%g") == "_x25_RETRY_x25_g"


def test_relative_warehouse_is_below_the_home_directory(tmp_path: Path) -> None:
    assert lake_settings("lake", tmp_path).warehouse == str(tmp_path / "lake")
    for absolute in ("/data/lake", "s3://bucket/lake", "file:///data/lake"):
        assert lake_settings(absolute, tmp_path).warehouse == absolute
    with pytest.raises(OptionInvalid, match="warehouse is empty"):
        lake_settings(" ", tmp_path)


def test_default_catalog_needs_a_warehouse_on_this_machine() -> None:
    with pytest.raises(OptionInvalid, match="give the properties of a catalog"):
        open_catalog(LakeSettings("s3://bucket/lake"))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("credential", "id:hidden"),
        ("token", "hidden"),
        ("s3.secret-access-key", "hidden"),
        ("s3.session-token", "hidden"),
        ("adls.account-key", "hidden"),
        ("adls.sas-token.account", "hidden"),
        ("gcs.oauth2.token", "hidden"),
        ("uri", "postgresql://user:hidden@host/db"),
    ],
)
def test_secret_in_settings_is_refused_and_not_shown(key: str, value: str) -> None:
    with pytest.raises(OptionInvalid, match=f"{key} is a secret") as caught:
        LakeSettings("lake", catalog={key: value})
    assert "hidden" not in str(caught.value)


def test_values_of_files_and_variables_open_the_catalog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "uri").write_text(f"sqlite:///{tmp_path}/other.db\n")
    monkeypatch.setenv("LAKE_TYPE", "sql")
    catalog = {"uri": f"file:{tmp_path}/uri", "type": "env:LAKE_TYPE"}
    catalog |= {"oauth2-server-uri": "https://host", "s3.access-key-id": "AKIA"}  # no secrets
    settings = LakeSettings(str(tmp_path / "lake"), catalog=catalog)
    assert ("raymq",) in open_catalog(settings).list_namespaces()
    assert (tmp_path / "other.db").exists()
    monkeypatch.delenv("LAKE_TYPE")
    with pytest.raises(OptionInvalid, match="the environment has no LAKE_TYPE"):
        open_catalog(settings)
    (tmp_path / "uri").unlink()
    with pytest.raises(OptionInvalid, match="cannot be read: No such file"):
        open_catalog(LakeSettings("lake", catalog={"uri": catalog["uri"]}))


def test_catalog_that_cannot_be_reached_is_named_without_its_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKE_URI", f"sqlite:///{tmp_path}/missing/hidden.db")
    settings = LakeSettings(str(tmp_path), catalog={"type": "sql", "uri": "env:LAKE_URI"})
    with pytest.raises(LakeUnavailable, match="the catalog of the lake cannot be used now") as caught:
        open_catalog(settings)
    assert "hidden" not in str(caught.value)
