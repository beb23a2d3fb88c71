import { count, html, link, plain, rate } from "../core.js";
import { Change, Name, Page, Sampled, Table, pageOf } from "../parts.js";
import { TOPIC_FIELDS } from "./topic.js";

const address = (_, { match, sort, page, system }) => ["/topics", { match, sort, page, system }];

export default pageOf(address, 10_000, ({ of, data, query, setQuery }) => {
  const columns = [
    { name: "topic", cell: (row) => html`<${Name} kind="topics" of=${row.topic} />` },
    ...(query.system ? [{ name: "kind" }] : []),
    { name: "queues", number: true }, { name: "perm", sort: false },
    { name: "put_tps", title: "in /s", number: true, cell: (row) => html`<${Sampled} value=${rate(row.put_tps)} row=${row} />` },
    { name: "messages", title: "stored", number: true, cell: (row) => html`<${Sampled} value=${count(row.messages)} row=${row} />` },
    { name: "lag", title: "highest lag", number: true },
    { name: "groups", sort: false, cell: (row) => html`<${Groups} of=${row.groups} />` },
  ];
  return html`<${Page} title="Topics" of=${of} actions=${html`
      <button class="quiet" onClick=${() => setQuery({ ...query, page: undefined, system: query.system ? undefined : "true" })}>${query.system ? "hide" : "show"} system topics</button>
      <${Change} label="Create topic…" title="Create a topic" at="/topics" onDone=${of.reload}
        fields=${[{ name: "topic", title: "name", type: "text", required: true, hint: "letters, digits and %|_-" }, ...TOPIC_FIELDS]} />`}>
    <${Table} columns=${columns} rows=${data.rows} server=${data.total} empty="no topic yet: a producer's first message creates one, or Create topic…" />
  </${Page}>`;
});

function Groups({ of }) {
  if (of === null) return "–";
  const shown = [...of].sort((one, other) => other.lag - one.lag).slice(0, 3);
  return html`<span class="list">${shown.map((each) => html`<a key=${each.group} href=${link(["groups", each.group])}>${plain(each.group)} <small>${count(each.lag)}</small></a>`)}
    ${of.length > 3 ? html`<small class="muted">+${of.length - 3}</small>` : null}</span>`;
}
