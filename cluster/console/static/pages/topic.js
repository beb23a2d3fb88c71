import { any, count, html, link, path, plain, rate, time } from "../core.js";
import { Change, Chart, Command, Name, Page, Problem, Table, Tabs, pageOf } from "../parts.js";

export const TOPIC_FIELDS = [
  { name: "queues", title: "queues on each broker", type: "number", hint: "empty: 4, or unchanged" },
  { name: "read_queues", title: "read queues on each broker", type: "number", hint: "empty: as many as queues" },
  { name: "perm", title: "permission", choices: [["", "unchanged"], ["rw", "read and write"], ["r", "read"], ["w", "write"], ["none", "none"]], value: "" },
  { name: "order", title: "order topic", type: "bool" },
];

export default pageOf((name) => [path("topics", name), {}], 5_000, ({ name, of, data, query }) => {
  const { details, progress, curves } = data, tab = query.tab ?? "queues";
  return html`<${Page} kind="topic" title=${name} of=${of}
      facts=${`${count(progress.queues.length)} queues · ${count(data.messages)} messages stored · ${rate(progress.put_tps)} /s in the last minute`}
      actions=${html`
        <a class="button" href=${link(["messages"], { topic: name })}>Messages</a>
        <${Change} label="Change…" title=${`Change topic ${name}`} at="/topics" fixed=${{ topic: name }} fields=${TOPIC_FIELDS} onDone=${of.reload} />
        <${Change} label="Delete…" title=${`Delete topic ${name}`} method="DELETE" at=${path("topics", name)} danger onDone=${() => { location.hash = link(["topics"]); }} />`}>
    ${curves && curves.times_ms.length > 1 ? html`<section class="panel"><h2>Messages per second</h2><${Chart} curves=${curves} height=${130} series=${[{ title: "in /s", at: 0, shown: rate }]} /></section>` : null}
    <${Tabs} chosen=${tab} names=${[["queues", `Queues ${progress.queues.length}`], ["groups", `Groups ${data.groups.length}`], ["settings", "Settings"],
      ...(details.brokers.some((each) => each.attributes["message.type"] === "LITE") ? [["lite", "Lite topics"]] : [])]} />
    ${tab === "lite" ? html`<${LiteTopics} name=${name} />` : tab === "groups" ? html`<${Table} rows=${data.groups} empty="no group has consumed this topic" columns=${[
      { name: "group", cell: (row) => html`<${Name} kind="groups" of=${row.group} />` },
      { name: "lag", number: true }, { name: "in_flight", number: true }]} />`
      : tab === "settings" ? html`<${Table} rows=${details.brokers} columns=${[
        { name: "broker", cell: (row) => html`<${Name} kind="brokers" of=${row.broker} />` },
        { name: "read_queues", number: true }, { name: "write_queues", number: true }, { name: "perm" }, { name: "order", cell: (row) => any(row.order) },
        { name: "attributes", cell: (row) => plain(Object.entries(row.attributes).map((pair) => pair.join("=")).join(", ") || "–") }]} />`
      : html`<${Table} rows=${progress.queues} columns=${[
        { name: "broker" }, { name: "queue", number: true },
        { name: "min_offset", title: "oldest offset", number: true }, { name: "max_offset", title: "next offset", number: true },
        { name: "messages", number: true }, { name: "last_ms", title: "last message", cell: (row) => time(row.last_ms) },
        { name: "look", title: "", sort: false, cell: (row) => html`<a href=${link(["messages"], { topic: name, last: 50 })}>messages</a>` }]} />`}
  </${Page}>`;
});

const lags = (groups) => groups.map((each) => html`<${Name} key=${each.group} kind="groups" of=${each.group} /> <small>${count(each.lag)} since ${time(each.oldest_ms)}</small> `);

/** The first lite topics by name; the server filters them, because there may be a million. */
const LiteTopics = pageOf((name, { match }) => [path("topics", name, "lite"), { match }], 5_000, ({ of, data }) => html`<${Problem} error=${of.error} />
  <p class="facts">${count(data.count)} lite topics · ${data.expires_after_min === null ? "they do not expire" : `expire ${count(data.expires_after_min)} min after their last message`} · groups: ${plain(data.groups.join(", ") || "none")}</p>
  <${Table} rows=${data.rows} server=${data.matches} size=${Math.max(data.matches, 1)} empty="no lite topic has messages" columns=${[
    { name: "lite_topic", cell: (row) => html`<span class="nowrap">${plain(row.lite_topic)}</span>` }, { name: "broker" }, { name: "messages", number: true }, { name: "oldest_ms", title: "oldest message", cell: (row) => time(row.oldest_ms) },
    { name: "last_ms", title: "last message", cell: (row) => time(row.last_ms) }, { name: "subscribers", number: true },
    { name: "lag", title: "highest lag", number: true }, { name: "groups", title: "lag and next message of groups", cell: (row) => (row.groups.length ? lags(row.groups) : "–") }].map((each) => ({ ...each, sort: false }))} />
  ${data.matches > data.rows.length ? html`<p class="muted">These are the first ${count(data.rows.length)} by name: filter to find others.</p>` : null}
  <${Command} line=${of.command} />`);
