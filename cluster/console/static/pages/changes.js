import { html, plain, time } from "../core.js";
import { Page, Table, pageOf } from "../parts.js";

export default pageOf(() => ["/changes", {}], 5_000, ({ of, data }) => html`
  <${Page} title="Changes" of=${of} facts="made through this console since it started, the last 1,000; its log has them too, as console_change">
    <${Table} rows=${data} empty="no changes yet" columns=${[
      { name: "at_ms", title: "at", cell: (row) => time(row.at_ms) }, { name: "user", cell: (row) => plain(row.user || "–") },
      { name: "what", cell: (row) => plain(row.what) },
      { name: "failed", title: "result", cell: (row) => (row.failed ? html`<span class="warn">${plain(row.failed)}</span>` : "done") },
      { name: "command", cell: (row) => html`<code>${plain(row.command)}</code>` }]} />
  </${Page}>`);
