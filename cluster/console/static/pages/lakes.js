import { count, html, plain, span } from "../core.js";
import { Name, Page, Table, pageOf } from "../parts.js";

const warned = (text) => html`<span class="warn">${text}</span>`;

export default pageOf(() => ["/lakes", {}], 5_000, ({ of, data }) => html`
  <${Page} title="Lakes" of=${of} facts="the Iceberg tables of topics, as the processes that fill them report them">
    ${data === null ? html`<p class="muted">Unknown here: only a console that is a process of the topology (consoles:) can ask the lakes.</p>` : html`
    <${Table} rows=${data} empty="no lake runs: docs/lake.md says how to add one" columns=${[
      { name: "topic", cell: (row) => (row.topic === null ? "–" : html`<${Name} kind="topics" of=${row.topic} />`) }, { name: "lake", cell: (row) => html`<span class="nowrap">${plain(row.lake)}</span>` },
      { name: "rows", number: true }, { name: "files", number: true }, { name: "snapshot", number: true, sort: false },
      { name: "behind_s", title: "behind", number: true, cell: (row) => span(row.behind_s === null ? null : row.behind_s * 1000) },
      { name: "lost", title: "lost in gaps", number: true, cell: (row) => (row.lost ? warned(count(row.lost)) : count(row.lost)) },
      { name: "failures", title: "failed rounds", number: true },
      { name: "problem", title: "last failure", cell: (row) => (row.problem ? warned(plain(row.problem)) : "") }]} />`}
  </${Page}>`);
