import { html, path, plain, useGet } from "../core.js";
import { Change, Command, Loading, Name, Page, Table, Tabs, pageOf } from "../parts.js";

export default pageOf((name) => [path("brokers", name), {}], 10_000, ({ name, of, data, query }) => {
  const tab = query.tab ?? "figures";
  const isDraining = (data.runtime.drainState ?? "active") !== "active";
  const pairs = Object.entries(tab === "settings" ? data.settings : data.runtime).map(([key, value]) => ({ name: key, value }));
  return html`<${Page} kind="broker" title=${name} of=${of} facts=${`${plain(data.runtime.brokerVersionDesc ?? "")} · ${plain(data.runtime.runtime ?? "")}`} actions=${html`
      <${Change} label="Change setting…" title=${`Change a live setting of ${name}`} at=${path("brokers", name, "settings")} onDone=${of.reload}
        fields=${[{ name: "setting", title: "setting", type: "text", required: true, hint: "a name of the tab Settings" }, { name: "value", title: "value", type: "text" }]}
        make=${(values) => ({ settings: { [values.setting]: values.value } })} />
      <${Change} label="Stop writes…" title=${`Refuse writes to ${name}`} danger at=${path("brokers", name, "writable")} fixed=${{ writable: false }} onDone=${of.reload} />
      <${Change} label="Allow writes…" title=${`Allow writes to ${name}`} at=${path("brokers", name, "writable")} fixed=${{ writable: true }} onDone=${of.reload} />
      <${Change} label="Restart…" title=${`Restart ${name}`} danger at=${path("brokers", name, "restart")} onDone=${of.reload} />
      ${isDraining ? html`<${Change} key="cancel" label="Cancel drain…" title=${`Cancel the drain of ${name}`} at=${path("brokers", name, "drain")} fixed=${{ cancel: true }} onDone=${of.reload} />`
        : html`<${Change} key="drain" label="Drain…" title=${`Drain ${name}`} danger at=${path("brokers", name, "drain")} onDone=${of.reload} />`}`}>
    ${isDraining ? html`<${Drain} broker=${name} />` : null}
    <${Tabs} chosen=${tab} names=${[["figures", "Figures"], ["settings", "Settings"]]} />
    <${Table} rows=${pairs} size=${200} columns=${[{ name: "name", cell: (row) => html`<code>${plain(row.name)}</code>` }, { name: "value", cell: (row) => plain(row.value) }]} />
  </${Page}>`;
});

/** The state of a drain, what is left to read, and the command that ends it. */
function Drain({ broker }) {
  const drain = useGet(path("brokers", broker, "drain"), {}, 2_000);
  return html`<section class="panel"><h2>Drain</h2>${drain.data ? html`<p>${plain(drain.data.summary)}</p>
    <${Table} rows=${drain.data.groups} filter=${false} empty="no group has unread messages here" columns=${[
      { name: "group", cell: (row) => html`<${Name} kind="groups" of=${row.group} />` }, { name: "members", number: true }, { name: "unread", number: true }]} />
    <${Command} line=${drain.command} />` : html`<${Loading} of=${drain} />`}</section>`;
}
