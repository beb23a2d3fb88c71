import { Shell, any, count, html, link, path, plain, useContext, useGet } from "../core.js";
import { Command, Facts, Loading, Name, Page, Problem, Table } from "../parts.js";

export default function Clients() {
  const { query } = useContext(Shell);
  if (query.group && query.client) return html`<${Member} group=${query.group} client=${query.client} />`;
  return html`<${List} />`;
}

function List() {
  const clients = useGet("/clients", {}, 15_000);
  if (!clients.data) return html`<${Loading} of=${clients} />`;
  const left = clients.data.groups_left_out;
  return html`<${Page} title="Clients" facts=${`${count(clients.data.clients.length)} connected${left ? `; ${count(left)} consumer groups were not looked at: open the group` : ""}`}>
    <${Problem} error=${clients.error} />
    <${Table} rows=${clients.data.clients} empty="no client is connected" columns=${[
      { name: "client_id", title: "client", cell: (row) => (row.role === "consumer" ? html`<a href=${link(["clients"], { group: row.group, client: row.client_id })}>${plain(row.client_id)}</a>` : plain(row.client_id)) },
      { name: "role" }, { name: "group", cell: (row) => (row.role === "consumer" ? html`<${Name} kind="groups" of=${row.group} />` : plain(row.group)) },
      { name: "address" }, { name: "language" }, { name: "version", number: true }]} />
    <${Command} line="raymq group members GROUP" />
  </${Page}>`;
}

function Member({ group, client }) {
  const { query, setQuery } = useContext(Shell);
  const stack = query.stack === "true";
  const member = useGet(path("groups", group, "members", client), { stack: stack || undefined });
  if (!member.data) return html`<${Loading} of=${member} />`;
  const { queues, properties, stack: text } = member.data;
  return html`<${Page} kind=${`member of ${plain(group)}`} title=${client} command=${member.command} facts=${html`<a href=${link(["groups", group])}>the group</a>`} actions=${html`
      <button onClick=${member.reload}>Look again</button>
      <button onClick=${() => setQuery({ ...query, stack: stack ? undefined : "true" })}>${stack ? "Hide stacks" : "Show stacks"}</button>`}>
    <${Problem} error=${member.error} />
    ${stack ? html`<section class="panel"><h2>Stacks of its threads</h2>${text ? html`<pre>${plain(text, true)}</pre>` : html`<p class="muted">It sends no stacks.</p>`}</section>` : null}
    <${Table} rows=${queues} empty="it holds no queue" columns=${[
      { name: "topic" }, { name: "brokerName", title: "broker" }, { name: "queueId", title: "queue", number: true },
      { name: "commitOffset", title: "committed", number: true }, { name: "cachedMsgCount", title: "buffered", number: true },
      { name: "droped", title: "dropped", cell: (row) => any(row.droped) }]} />
    <h2>Settings</h2><${Facts} of=${Object.fromEntries(Object.entries(properties).map(([name, value]) => [name, any(value)]))} />
  </${Page}>`;
}
