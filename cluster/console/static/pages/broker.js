import { Shell, html, path, plain, useContext, useGet } from "../core.js";
import { Change, Loading, Page, Problem, Table, Tabs } from "../parts.js";

export default function Broker({ name }) {
  const { query } = useContext(Shell);
  const broker = useGet(path("brokers", name), {}, 10_000);
  const { data } = broker, tab = query.tab ?? "figures";
  if (!data) return html`<${Loading} of=${broker} />`;
  const pairs = Object.entries(tab === "settings" ? data.settings : data.runtime).map(([key, value]) => ({ name: key, value }));
  return html`<${Page} kind="broker" title=${name} command=${broker.command} facts=${`${plain(data.runtime.brokerVersionDesc ?? "")} · ${plain(data.runtime.runtime ?? "")}`} actions=${html`
      <${Change} label="Change setting…" title=${`Change a live setting of ${name}`} at=${path("brokers", name, "settings")} onDone=${broker.reload}
        fields=${[{ name: "setting", title: "setting", type: "text", required: true, hint: "a name of the tab Settings" }, { name: "value", title: "value", type: "text" }]}
        make=${(values) => ({ settings: { [values.setting]: values.value } })} />
      <${Change} label="Stop writes…" title=${`Refuse writes to ${name}`} danger at=${path("brokers", name, "writable")} fixed=${{ writable: false }} onDone=${broker.reload} />
      <${Change} label="Allow writes…" title=${`Allow writes to ${name}`} at=${path("brokers", name, "writable")} fixed=${{ writable: true }} onDone=${broker.reload} />
      <${Change} label="Restart…" title=${`Restart ${name}`} danger at=${path("brokers", name, "restart")} onDone=${broker.reload} />`}>
    <${Problem} error=${broker.error} />
    <${Tabs} chosen=${tab} names=${[["figures", "Figures"], ["settings", "Settings"]]} />
    <${Table} rows=${pairs} size=${200} columns=${[{ name: "name", cell: (row) => html`<code>${plain(row.name)}</code>` }, { name: "value", cell: (row) => plain(row.value) }]} />
  </${Page}>`;
}
