import { any, count, html, link, path, plain, rate, short, time } from "../core.js";
import { Change, Chart, Command, Facts, Name, Page, Problem, Table, Tabs, pageOf } from "../parts.js";

export const GROUP_FIELDS = [
  { name: "max_retries", title: "retries before a message is a dead letter", type: "number", hint: "empty: 16, or unchanged" },
  { name: "enabled", title: "may consume", type: "bool" },
  { name: "broadcast", title: "may broadcast", type: "bool" },
];

export default pageOf((name) => [path("groups", name), {}], 5_000, ({ name, of, data, query }) => {
  const { details, curves } = data, tab = query.tab ?? "queues";
  const topics = [...new Set(details.queues.map((queue) => queue.topic))];
  return html`<${Page} kind="group" title=${name} of=${of}
      facts=${`lag ${count(details.lag)} · ${details.members.length === 1 ? "1 member" : `${count(details.members.length)} members`} · ${rate(details.tps)} /s in the last minute · ${count(details.retries)} retries wait · ${count(details.dead_letters)} dead letters`}
      actions=${html`<${Actions} name=${name} topics=${topics} reload=${of.reload} />`}>
    ${curves && curves.times_ms.length > 1 ? html`<section class="panel"><h2>Lag and rate</h2><${Chart} curves=${curves} height=${130}
      series=${[{ title: "lag", at: 0, shown: short }, { title: "out /s", at: 1, shown: rate, second: true }]} /></section>` : null}
    <${Tabs} chosen=${tab} names=${[["queues", `Queues ${details.queues.length}`], ["members", `Members ${details.members.length}`], ["owners", "Owners"], ["settings", "Settings"]]} />
    ${tab === "owners" ? html`<${Owners} name=${name} />` : tab === "members" ? html`<${Members} details=${details} />`
      : tab === "settings" ? html`<${Facts} of=${Object.fromEntries(Object.entries(details.settings).map(([key, value]) => [key, any(value)]))} />`
      : html`<${Queues} data=${data} />`}
  </${Page}>`;
});

function Queues({ data }) {
  const spans = new Map(data.retained.map((row) => [`${row.topic} ${row.broker} ${row.queue}`, row]));
  const rows = data.details.queues.map((queue) => ({ ...queue, ...spans.get(`${queue.topic} ${queue.broker} ${queue.queue}`) }));
  return html`<${Table} rows=${rows} empty="no broker knows a topic of this group, so its lag is unknown" columns=${[
    { name: "topic", cell: (row) => html`<${Name} kind="topics" of=${row.topic} />` }, { name: "broker" }, { name: "queue", number: true },
    { name: "committed", number: true }, { name: "end", number: true },
    { name: "lag", number: true, cell: (row) => (row.lag ? html`<b>${count(row.lag)}</b>` : count(row.lag)) }, { name: "in_flight", number: true },
    { name: "last_ms", title: "last consumed", cell: (row) => time(row.last_ms) },
    { name: "oldest_ms", title: "retained since", cell: (row) => time(row.oldest_ms) }]} />`;
}

/** Which member holds each queue: asked only while this tab is open, because it takes a request to each member. */
const Owners = pageOf((name) => [path("groups", name, "owners"), {}], 10_000, ({ of, data, name }) => html`<${Problem} error=${of.error} />
  <${Table} rows=${data} empty="no queue has been assigned" columns=${[{ name: "topic" }, { name: "broker" }, { name: "queue", number: true },
    { name: "owner", cell: (row) => (row.owner ? html`<a href=${link(["clients"], { group: name, client: row.owner })}>${plain(row.owner)}</a>` : "–") }, { name: "generation", number: true, cell: (row) => plain(row.generation) }]} />
  <${Command} line=${of.command} />`);

function Members({ details }) {
  return html`<${Table} rows=${details.members} empty="no member is online" columns=${[
    { name: "client_id", title: "client", cell: (row) => html`<a href=${link(["clients"], { group: details.group, client: row.client_id })}>${plain(row.client_id)}</a>` }, { name: "address" }, { name: "language" }, { name: "version", number: true }]} />
    ${Object.keys(details.subscriptions).length ? html`<h2>Subscriptions</h2>
      <${Facts} of=${Object.fromEntries(Object.entries(details.subscriptions).map(([topic, expression]) => [topic, html`<code>${plain(expression)}</code>`]))} />` : null}`;
}

function Actions({ name, topics, reload }) {
  const choice = { name: "topic", title: "topic", choices: topics.map((topic) => [topic, plain(topic)]), value: topics[0] ?? "", required: true };
  const at = (action) => path("groups", name, action);
  return html`
    ${topics.length ? html`
      <${Change} label="Reset…" title=${`Reset the offsets of ${name}`} at=${at("offsets")} onDone=${reload} fields=${[choice,
        { name: "to", title: "to", type: "text", placeholder: "earliest, latest, -15m, 2026-11-21T09:30:00", hint: "or an offset of one queue:" },
        { name: "queue", title: "queue", type: "text", placeholder: "broker-a:0" }, { name: "offset", title: "offset", type: "number" }]} />
      <${Change} label="Skip…" title=${`Skip unconsumed messages of ${name}`} at=${at("skip")} danger onDone=${reload} fields=${[choice]} />
      <${Change} label="Clone…" title=${`Copy the offsets of ${name}`} at=${at("clone")} onDone=${reload} fields=${[
        { name: "target", title: "to the group", type: "text", required: true, hint: "stop its members first" },
        { ...choice, choices: [["", "all topics"], ...choice.choices], value: "", required: false }]} />` : null}
    <${Change} label="Change…" title=${`Change group ${name}`} at="/groups" fixed=${{ group: name }} fields=${GROUP_FIELDS} onDone=${reload} />
    <${Change} label="Delete…" title=${`Delete group ${name}`} method="DELETE" at=${path("groups", name)} danger onDone=${() => { location.hash = link(["groups"]); }} />`;
}
