import { Shell, any, count, html, link, path, plain, useContext } from "../core.js";
import { Command, Facts, Name, Page, Table, pageOf } from "../parts.js";

export default function Clients() {
  const { query } = useContext(Shell);
  if (query.group && query.client) return html`<${Member} />`;
  return html`<${List} />`;
}

const List = pageOf(() => ["/clients", {}], 15_000, ({ of, data }) => {
  const left = data.groups_left_out;
  return html`<${Page} title="Clients" of=${of} facts=${`${count(data.clients.length)} connected${left ? `; ${count(left)} consumer groups were not looked at: open the group` : ""}`}>
    <${Table} rows=${data.clients} empty="no client is connected" columns=${[
      { name: "client_id", title: "client", cell: (row) => (row.role === "consumer" ? html`<a href=${link(["clients"], { group: row.group, client: row.client_id })}>${plain(row.client_id)}</a>` : plain(row.client_id)) },
      { name: "role" }, { name: "group", cell: (row) => (row.role === "consumer" ? html`<${Name} kind="groups" of=${row.group} />` : plain(row.group)) },
      { name: "address" }, { name: "language" }, { name: "version", number: true }]} />
    <${Command} line="raymq group members GROUP" />
  </${Page}>`;
});

const memberAddress = (_, { group, client, stack }) => [path("groups", group, "members", client), { stack }];

const Member = pageOf(memberAddress, 0, ({ of, data, query, setQuery }) => {
  const { group, client, stack } = query, { queues, properties, stack: text } = data;
  return html`<${Page} kind=${`member of ${plain(group)}`} title=${client} of=${of} facts=${html`<a href=${link(["groups", group])}>the group</a>`} actions=${html`
      <button onClick=${of.reload}>Look again</button>
      <button onClick=${() => setQuery({ ...query, stack: stack ? undefined : "true" })}>${stack ? "Hide stacks" : "Show stacks"}</button>`}>
    ${stack ? html`<section class="panel"><h2>Stacks of its threads</h2>${text ? html`<pre>${plain(text, true)}</pre>` : html`<p class="muted">It sends no stacks.</p>`}</section>` : null}
    <${Table} rows=${queues} empty="it holds no queue" columns=${[
      { name: "topic" }, { name: "brokerName", title: "broker" }, { name: "queueId", title: "queue", number: true },
      { name: "commitOffset", title: "committed", number: true }, { name: "cachedMsgCount", title: "buffered", number: true },
      { name: "droped", title: "dropped", cell: (row) => any(row.droped) }]} />
    <h2>Settings</h2><${Facts} of=${Object.fromEntries(Object.entries(properties).map(([name, value]) => [name, any(value)]))} />
  </${Page}>`;
});
