import { count, html, link, percent, plain, rate, short, span, time, useGet } from "../core.js";
import { BrokerName, Chart, Loading, Name, Page, Sampled, pageOf } from "../parts.js";

const EVERY_MS = 5_000;

export default pageOf(() => ["/overview", {}], EVERY_MS, ({ of, data, query, setQuery }) => {
  const range = query.span === "day" ? "day" : "hour";
  const history = useGet("/history", { span: range }, EVERY_MS);
  const total = data.brokers?.filter((each) => each.id === 0).length;
  const isPartlyUp = data.brokers_up !== null && data.brokers_up < total;
  return html`<${Page} title="Overview" of=${of}
      facts=${data.at_ms ? html`as of ${time(data.at_ms)}${data.stale_ms ? html`, <b class="warn">${span(data.stale_ms)} ago</b>` : null}` : "the first sample is being taken"}>
    <section class="tiles">
      <${Tile} title="in" value=${rate(data.in_tps)} unit="/s" />
      <${Tile} title="out" value=${rate(data.out_tps)} unit="/s" />
      <${Tile} title="lag" value=${short(data.lag)} bad=${data.groups.some((each) => each.behind_ms > 60_000)} />
      <${Tile} title="in flight" value=${short(data.in_flight)} />
      <${Tile} title="fullest disk" value=${percent(data.disk_used)} bad=${data.disk_used >= 0.75} />
      <${Tile} title="brokers up" value=${count(data.brokers_up)} unit=${total === undefined ? "" : ` of ${total}`} bad=${isPartlyUp} />
    </section>
    ${data.notices.length ? html`<ul class="notices">${data.notices.map((each) => html`<li key=${each.text} class=${each.level}>
      <a href=${link(each.page.split("/"))}>${plain(each.text)}</a></li>`)}</ul>` : data.at_ms ? html`<p class="fine">No warnings.</p>` : null}
    <section class="panel">
      <div class="bar"><h2>Messages per second</h2>
        <span class="pages">${["hour", "day"].map((each) => html`<button key=${each} class=${each === range ? "on" : ""}
          onClick=${() => setQuery({ ...query, span: each === "hour" ? undefined : each })}>last ${each}</button>`)}</span></div>
      ${history.data ? html`<${Chart} key=${range} curves=${history.data} series=${[
        { title: "in /s", at: 0, shown: rate }, { title: "out /s", at: 1, shown: rate }, { title: "lag", at: 2, shown: short, second: true }]} />` : html`<${Loading} of=${history} />`}
    </section>
    <div class="columns">
      <section class="panel"><h2>Busiest topics</h2><${Short} rows=${data.topics} heads=${["topic", "in /s", "stored"]} empty="no topic yet"
        cells=${(row) => [html`<${Name} kind="topics" of=${row.topic} />`, html`<${Sampled} value=${rate(row.put_tps)} row=${row} />`, count(row.messages)]} /></section>
      <section class="panel"><h2>Highest lag</h2><${Short} rows=${data.groups} heads=${["group", "lag", "behind", "out /s"]} empty="no group has consumed yet"
        cells=${(row) => [html`<${Name} kind="groups" of=${row.group} />`, count(row.lag), row.lag === 0 ? "0 s" : span(row.behind_ms), rate(row.tps)]} /></section>
      <section class="panel"><h2>Brokers</h2><${Short} rows=${data.brokers ?? []} heads=${["broker", "in /s", "out /s", "disk"]} empty="unknown"
        cells=${(row) => [html`<${BrokerName} row=${row} />${row.replica ? html`<br /><small class=${row.replica.is_in_sync === false ? "warn" : "muted"}>${plain(row.replica.role)}</small>` : ""}`,
          rate(row.load?.put_tps), rate(row.load?.get_tps), percent(row.load?.disk_used)]} /></section>
      <section class="panel"><h2>Last changes</h2><${Short} rows=${data.changes} heads=${["change", "at"]} empty="none through this console"
        cells=${(row) => [plain(row.what), time(row.at_ms)]} /></section>
    </div>
  </${Page}>`;
});

const Tile = ({ title, value, unit = "", bad }) => html`<div class=${bad ? "tile bad" : "tile"}><span>${title}</span><b>${value}<small>${value === "–" ? "" : unit}</small></b></div>`;

function Short({ rows, heads, cells, empty }) {
  return html`<table><thead><tr>${heads.map((head, at) => html`<th key=${head} class=${at ? "n" : ""}>${head}</th>`)}</tr></thead>
    <tbody>${rows.map((row, number) => html`<tr key=${number}>${cells(row).map((cell, at) => html`<td key=${at} class=${at ? "n" : ""}>${cell}</td>`)}</tr>`)}
    ${rows.length ? null : html`<tr><td class="empty" colspan=${heads.length}>${empty}</td></tr>`}</tbody></table>`;
}
