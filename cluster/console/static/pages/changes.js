import { html, plain, time, useGet } from "../core.js";
import { Loading, Page, Problem, Table } from "../parts.js";

export default function Changes() {
  const changes = useGet("/changes", {}, 5_000);
  if (!changes.data) return html`<${Loading} of=${changes} />`;
  return html`<${Page} title="Changes" facts="made through this console since it started; its log has them too, as console_change">
    <${Problem} error=${changes.error} />
    <${Table} rows=${changes.data} empty="no changes yet" columns=${[
      { name: "at_ms", title: "at", cell: (row) => time(row.at_ms) }, { name: "user", cell: (row) => plain(row.user || "–") },
      { name: "what", cell: (row) => plain(row.what) },
      { name: "failed", title: "result", cell: (row) => (row.failed ? html`<span class="warn">${plain(row.failed)}</span>` : "done") },
      { name: "command", cell: (row) => html`<code>${plain(row.command)}</code>` }]} />
  </${Page}>`;
}
