import { html, plain, rate, span } from "../core.js";
import { Change, Name, Page, Table, pageOf } from "../parts.js";
import { GROUP_FIELDS } from "./group.js";

const address = (_, { match, sort, page, system }) => ["/groups", { match, sort, page, system }];

export default pageOf(address, 5_000, ({ of, data, query, setQuery }) => {
  const columns = [
    { name: "group", cell: (row) => html`<${Name} kind="groups" of=${row.group} />` },
    { name: "lag", number: true },
    { name: "behind_ms", title: "behind", number: true, cell: (row) => (row.lag === 0 ? "0 s" : span(row.behind_ms)) },
    { name: "tps", title: "out /s", number: true, cell: (row) => rate(row.tps) },
    { name: "in_flight", number: true },
    { name: "topics", sort: false, cell: (row) => html`<span class="list">${row.topics.slice(0, 3).map((topic) => html`<${Name} key=${topic} kind="topics" of=${topic} />`)}
      ${row.topics.length > 3 ? html`<small class="muted">+${row.topics.length - 3}</small>` : null}</span>` },
  ];
  return html`<${Page} title="Groups" of=${of} actions=${html`
      <button class="quiet" onClick=${() => setQuery({ ...query, page: undefined, system: query.system ? undefined : "true" })}>${query.system ? "hide" : "show"} system groups</button>
      <${Change} label="Create group…" title="Create a consumer group" at="/groups" onDone=${of.reload}
        fields=${[{ name: "group", title: "name", type: "text", required: true, hint: plain("letters, digits and %|_-") }, ...GROUP_FIELDS]} />`}>
    <${Table} columns=${columns} rows=${data.rows} server=${data.total} empty="no consumer group yet: the first member of a group creates it" />
  </${Page}>`;
});
