import { count, html, link, path, plain, time } from "../core.js";
import { Change, Page, Table, pageOf } from "../parts.js";

const TO = { name: "to", title: "send to", choices: [["group", "this group only"], ["topic", "their topic: all its groups receive them"]], value: "group" };

export default pageOf((name, { handled }) => [path("dead-letters", name), { handled }], 10_000, ({ name, of, data, query, setQuery }) => {
  const at = (action) => path("dead-letters", name, action);
  return html`<${Page} kind="dead letters" title=${name} of=${of}
      facts=${html`${count(data.length)} shown, the oldest first; <a href=${link(["groups", name])}>the group</a>`} actions=${html`
      <button class="quiet" onClick=${() => setQuery({ ...query, handled: query.handled ? undefined : "true" })}>${query.handled ? "hide" : "show"} handled ones</button>
      <${Change} label="Resend all…" title=${`Send dead letters of ${name} again`} at=${at("resend")} fields=${[TO]} onDone=${of.reload} />
      <${Change} label="Purge…" title=${`Purge dead letters of ${name}`} at=${at("purge")} danger onDone=${of.reload}
        fields=${[{ name: "until", title: "only those stored before", type: "text", placeholder: "-7d, 2026-11-21T09:30:00", hint: "empty: all" }]} />`}>
    <${Table} rows=${data} empty="no dead letter is pending" columns=${[
      { name: "store_ms", title: "stored", cell: (row) => time(row.store_ms) },
      { name: "origin", title: "from topic", cell: (row) => (row.origin ? html`<a href=${link(["topics", row.origin])}>${plain(row.origin)}</a>` : "–") },
      { name: "broker" }, { name: "offset", number: true }, { name: "tags" }, { name: "keys" },
      { name: "body", cell: (row) => html`<code>${row.bodies === "hidden" ? "hidden" : plain((row.body ?? row.body_base64).slice(0, 120))}</code>` },
      { name: "do", title: "", sort: false, cell: (row) => html`<span class="list"><a href=${link(["messages"], { topic: row.topic, mode: "id", id: row.id })}>show</a>
        <${Change} key=${row.id} label="resend…" title="Send this dead letter again" at=${at("resend")} fixed=${{ message: row.id }} fields=${[TO]} onDone=${of.reload} /></span>` }]} />
  </${Page}>`;
});
