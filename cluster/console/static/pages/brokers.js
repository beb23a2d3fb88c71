import { count, html, percent, plain, rate, span } from "../core.js";
import { BrokerName, Page, Table, pageOf } from "../parts.js";

const role = ({ id, load, replica }) => {
  const found = replica?.role ?? (id ? "slave" : load?.raft_term ? `leader, term ${load.raft_term}` : "master");
  return load?.raft_voters ? `${found}, ${load.raft_active_voters} of ${load.raft_voters} voters` : found;
};

/** The role, and below it how far the replica is behind or how many voters there are. */
function Role({ row }) {
  const parts = plain(role(row)).split(", "), head = parts[1]?.startsWith("term") ? 2 : 1;
  return html`<span class=${row.replica?.is_in_sync === false ? "nowrap warn" : "nowrap"}>${parts.slice(0, head).join(", ")}<br /><small>${parts.slice(head).join(", ")}</small></span>`;
}

const PROBLEM = { name: "problem", cell: (row) => (row.problem ? html`<span class="warn">${plain(row.problem)}</span>` : "") };
const load = (name) => ({ value: (row) => row.load?.[name] });

export default pageOf(() => ["/brokers", {}], 5_000, ({ of, data }) => html`
  <${Page} title="Brokers" of=${of}>
    <${Table} rows=${data} empty="no broker is registered" columns=${[
      { name: "broker", cell: (row) => html`<${BrokerName} row=${row} />` },
      { name: "id", title: "role", value: role, cell: (row) => html`<${Role} row=${row} />` }, { name: "address" },
      { name: "put_tps", title: "in /s", number: true, ...load("put_tps"), cell: (row) => rate(row.load?.put_tps) },
      { name: "get_tps", title: "out /s", number: true, ...load("get_tps"), cell: (row) => rate(row.load?.get_tps) },
      { name: "disk_used", title: "disk", number: true, ...load("disk_used"), cell: (row) => percent(row.load?.disk_used) },
      ...[["open_transactions", "open transactions"], ["pending_timers", "timers"], ["retries", "retries"], ["dead_letters", "dead letters"]].map(([name, title]) => (
        { name, title, number: true, ...load(name), cell: (row) => count(row.load?.[name]) })),
      { name: "up_s", title: "up", number: true, ...load("up_s"), cell: (row) => (row.load ? span(row.load.up_s === null ? null : row.load.up_s * 1000) : "–") },
      ...(data.some((row) => row.problem) ? [PROBLEM] : [])]} />
  </${Page}>`);
