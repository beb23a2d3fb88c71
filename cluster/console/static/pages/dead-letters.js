import { html } from "../core.js";
import { Name, Page, Table, pageOf } from "../parts.js";

export default pageOf(() => ["/dead-letters", {}], 10_000, ({ of, data }) => html`
  <${Page} title="Dead letters" of=${of} facts="messages that a group failed to consume">
    <${Table} rows=${data} empty="no group has dead letters" columns=${[
      { name: "group", cell: (row) => html`<${Name} kind="dead-letters" of=${row.group} />` }, { name: "dead_letters", title: "pending", number: true }]} />
  </${Page}>`);
