import { call, count, html, link, path, plain, time, useEffect, useState } from "../core.js";
import { Change, Page, Table, pageOf } from "../parts.js";

const TO = { name: "to", title: "send to", choices: [["group", "this group only"], ["topic", "their topic: all its groups receive them"]], value: "group" };

const NONE = { rows: [] };
const placeOf = (row) => `${row.broker}:${row.queue}@${row.offset}`;

export default pageOf((name, { handled }) => [path("dead-letters", name), { handled }], 10_000, ({ name, of, data, query, setQuery }) => {
  const at = (action) => path("dead-letters", name, action);
  const [older, setOlder] = useState(NONE);
  const [error, setError] = useState();
  useEffect(() => setOlder(NONE), [query.handled]);
  const reload = () => { setOlder(NONE); of.reload(); };
  const next = older.rows.length ? older.next : of.next;
  const seen = new Set(data.map(placeOf)), rows = [...data, ...older.rows.filter((row) => !seen.has(placeOf(row)))];
  const more = () => call("GET", path("dead-letters", name), { handled: query.handled, before: next }).then((found) => {
    setError(undefined);
    setOlder({ rows: [...older.rows, ...found.data], next: found.next });
  }, setError);
  return html`<${Page} kind="dead letters" title=${name} of=${{ ...of, error: of.error ?? error, command: of.command?.replace(/--max \d+/, `--max ${Math.max(rows.length, 200)}`) }}
      facts=${html`${next ? `${count(rows.length)} of ${count(of.total)}` : count(rows.length)} shown, the newest first; <a href=${link(["groups", name])}>the group</a>`} actions=${html`
      <button class="quiet" onClick=${() => setQuery({ ...query, handled: query.handled ? undefined : "true" })}>${query.handled ? "hide" : "show"} handled ones</button>
      <${Change} label="Resend all…" title=${`Send dead letters of ${name} again`} at=${at("resend")} fields=${[TO]} onDone=${reload} />
      <${Change} label="Purge…" title=${`Purge dead letters of ${name}`} at=${at("purge")} danger onDone=${reload}
        fields=${[{ name: "until", title: "only those stored before", type: "text", placeholder: "-7d, 2026-11-21T09:30:00", hint: "empty: all" }]} />`}>
    <${Table} rows=${rows} empty="no dead letter is pending" columns=${[
      { name: "store_ms", title: "stored", cell: (row) => time(row.store_ms) },
      { name: "origin", title: "from topic", cell: (row) => (row.origin ? html`<a href=${link(["topics", row.origin])}>${plain(row.origin)}</a>` : "–") },
      { name: "broker" }, { name: "offset", number: true }, { name: "tags" }, { name: "keys" },
      { name: "body", cell: (row) => html`<code>${row.bodies === "hidden" ? "hidden" : plain((row.body ?? row.body_base64).slice(0, 120))}</code>` },
      { name: "do", title: "", sort: false, cell: (row) => html`<span class="list"><a href=${link(["messages"], { topic: row.topic, mode: "id", id: row.id })}>show</a>
        <${Change} key=${row.id} label="resend…" title="Send this dead letter again" at=${at("resend")} fixed=${{ message: row.id }} fields=${[TO]} onDone=${reload} /></span>` }]} />
    ${next ? html`<p><button onClick=${more}>Continue</button> <span class="muted">${count(of.total - rows.length)} older, not shown</span></p>` : null}
  </${Page}>`;
});
