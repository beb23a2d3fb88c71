import { count, html, link, path, useGet } from "../core.js";
import { Loading, Name, Page, Table, pageOf } from "../parts.js";

/** Messages that wait in brokers: timers by topic, and open transactions. */
export default pageOf(() => ["/brokers", {}], 10_000, ({ of, data }) => {
  const masters = data.filter((each) => each.id === 0);
  return html`<${Page} title="Timers and transactions" of=${of} facts="messages that wait in a broker for their time, or for the end of their transaction">
    <${Table} rows=${masters} filter=${false} columns=${[
      { name: "broker", cell: (row) => html`<${Name} kind="brokers" of=${row.broker} />` },
      { name: "timers", title: "pending timers", number: true, value: (row) => row.load?.pending_timers, cell: (row) => count(row.load?.pending_timers) },
      { name: "open", title: "open transactions", number: true, value: (row) => row.load?.open_transactions, cell: (row) => count(row.load?.open_transactions) },
      { name: "retries", number: true, value: (row) => row.load?.retries, cell: (row) => count(row.load?.retries) }]} />
    <p><a href=${link(["messages"], { topic: "RMQ_SYS_TRANS_HALF_TOPIC", last: 50 })}>Look at half messages</a>, open and finished ones.</p>
    <div class="columns">${masters.map((each) => html`<${Timers} key=${each.broker} broker=${each.broker} />`)}</div>
  </${Page}>`;
});

function Timers({ broker }) {
  const timers = useGet(path("brokers", broker, "timers"), {}, 10_000);
  const rows = Object.entries(timers.data ?? {}).map(([topic, number]) => ({ topic, timers: number }));
  return html`<section class="panel"><h2>Timers of ${broker} by topic</h2>
    ${timers.data ? html`<${Table} rows=${rows} filter=${false} empty="no timer is pending" columns=${[
      { name: "topic", cell: (row) => html`<${Name} kind="topics" of=${row.topic} />` }, { name: "timers", number: true }]} />` : html`<${Loading} of=${timers} />`}</section>`;
}
